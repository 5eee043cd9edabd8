"""Pages of the site that come from other files or from the code, and links that leave the folder docs."""

import posixpath
import re
from collections.abc import Iterator
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter
from typer.main import get_command

from synthesizer_lab.cli.app import app
from synthesizer_lab.training.settings import known_presets, list_settings

ROOT = Path(__file__).parents[1]
COPIES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
REFERENCE = {
    "layers": "SynthesizerAttention SynthesizerMultiheadAttention TokenLayout attend attention_weights",
    "models": "SynthesizerConfig SynthesizerPreTrainedModel SynthesizerModel SynthesizerForConditionalGeneration "
    "SynthesizerForCausalLM SynthesizerForMaskedLM SynthesizerForSequenceClassification "
    "SynthesizerForTokenClassification",
    "functions": "generate convert export_model",
    "own functions": "synthesizers.SynthesizingFunction synthesizers.Dimensions synthesizers.register "
    "logits.Positions InnerLogits OuterLogits SharedLogits MixedLogits GroupedLogits",
    "equations": "reference",
}
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages: dict[str, str | bytes] = {
        page: (ROOT / source).read_text(encoding="utf-8") for source, page in COPIES.items()
    }
    pages |= {"reference/command.md": "\n".join(command_page()), "reference/settings.md": "\n".join(settings_page())}
    for page, names in REFERENCE.items():
        blocks = (f"::: synthetic_attention.{name}" for name in names.split())
        pages[f"reference/{page.replace(' ', '-')}.md"] = "\n\n".join([f"# {page.capitalize()}", *blocks])
    for source in (ROOT / "docs/notebooks").glob("*.ipynb"):
        text, found = MarkdownExporter().from_filename(source, resources={"unique_key": source.stem})
        pages[f"notebooks/{source.stem}.md"] = text
        pages |= {f"notebooks/{name}": picture for name, picture in found["outputs"].items()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Links of copied pages point to pages; those to other files of the repository become their path."""
    home = "" if page.file.src_uri in COPIES.values() else posixpath.dirname(f"docs/{page.file.src_uri}")

    def rewrite(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = (ROOT / home / target).resolve().relative_to(ROOT).as_posix()
        if path in COPIES or path.startswith("docs/"):
            found = COPIES.get(path, path.removeprefix("docs/").replace(".ipynb", ".md"))
            return f"[{text}]({posixpath.relpath(found, posixpath.dirname(page.file.src_uri))}{anchor})"
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    return markdown if page.file.src_uri.startswith("reference/") else _LINK.sub(rewrite, markdown)


def command_page() -> Iterator[str]:
    """Every command with its options."""
    yield "# The command synthesizer\n\nMade from the code; `synthesizer COMMAND --help` prints the same.\n"
    commands: dict[str, Any] = dict(get_command(app).commands)  # type: ignore[attr-defined]
    commands |= {f"benchmark {name}": each for name, each in commands.pop("benchmark").commands.items()}
    for name, command in commands.items():
        yield f"## synthesizer {name}\n\n{command.help}\n\n```bash\n{command.epilog}\n```\n"
        yield "| option | meaning |\n|---|---|"
        for each in command.params:
            flag = each.opts[0].startswith("-")
            flags = " ".join([*each.opts[:1], each.metavar or ""]).strip() if flag else each.metavar
            yield f"| `{flags}` | {cell(each.help)} |"
        yield ""


def settings_page() -> Iterator[str]:
    """Every key of --set."""
    yield "# All settings\n\nMade from the code: the keys of `--set`; `synthesizer settings KEY` prints the same."
    yield "\n## Presets"
    for name in known_presets():
        values = yaml.safe_load((resources("synthesizer_lab.training") / f"presets/{name}.yaml").read_text("utf-8"))
        yield f"\n### {name}\n\n```yaml\n{yaml.safe_dump(values, sort_keys=False).strip()}\n```"
    group = ""
    for each in list_settings():
        if each.group != group:
            group = each.group
            yield f"\n## {group}\n\n| key | value in `tiny` | meaning |\n|---|---|---|"
        yield f"| `{each.key}` | {'' if each.value is None else f'`{each.value}`'} | {cell(each.meaning)} |"


def cell(text: str | None) -> str:
    """A text as a cell of a table."""
    return (text or "").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
