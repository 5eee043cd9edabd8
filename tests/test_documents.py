"""The documents: Python code runs and prints what the page shows; commands have the options that they use."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from documents import ROOT, blocks
from synthesizer_lab.cli.app import app
from synthesizer_lab.data.phrases import make_phrases
from synthesizer_lab.data.tokenizer import train_tokenizer
from synthetic_attention import SynthesizerConfig, SynthesizerForConditionalGeneration
from tasks.glue_files import write_glue, write_superglue

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Links to files and headings; pages that code names.
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)#?([^)\s]*)\)")
NAMED = re.compile(r"\bdocs/[\w-]+\.md\b")
COMMAND = re.compile(r"(?:^|; do | \| |^ *|-m )synthesizer(?:_lab)? ([^;|]+)")
NUMBER = re.compile(r"-?\d+\.\d+")
SENTENCE = "The concert in Vienna begins at 8:30 PM."


@pytest.fixture
def in_folder_of_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has the run of README.md, with random weights."""
    tokenizer = train_tokenizer([SENTENCE], 300, 64)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 1, "max_position_embeddings": 64}
    config = SynthesizerConfig(vocab_size=len(tokenizer), synthesizer="random", **sizes)
    for each in (SynthesizerForConditionalGeneration(config), tokenizer):
        each.save_pretrained(tmp_path / "runs/phrases")
    monkeypatch.chdir(tmp_path)


# The blocks of a page run in order.
RUNNABLE = ("README.md", "docs/choosing.md", "docs/dense-synthesizer.md", "docs/faq.md", "docs/hugging-face.md")
RUNNABLE += ("docs/converting.md", "docs/generation.md", "docs/replacing.md", "docs/serving.md", "docs/variants.md")


@pytest.mark.parametrize("page", RUNNABLE)
@pytest.mark.usefixtures("in_folder_of_run")
def test_python_prints_what_the_page_shows(page: str) -> None:
    found = blocks(ROOT / page)
    namespace: dict[str, Any] = {}
    sources = [index for index, (language, _) in enumerate(found) if language == "python"]
    assert sources
    for index in sources:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(found[index][1], f"{page}, block {index}", "exec"), namespace)
        after = found[index + 1] if index + 1 < len(found) else ("", "")
        shown, text = after[1] if after[0] == "text" else "", printed.getvalue()
        # Words are the same; other machines may round the last digit of a fraction the other way.
        assert NUMBER.sub("#", text).split() == NUMBER.sub("#", shown).split(), found[index][1]
        numbers = [[float(number) for number in NUMBER.findall(each)] for each in (text, shown)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1.01e-4), found[index][1]


def commands(page: Path) -> list[list[str]]:
    """The words of every `synthesizer` command, also of those that `torchrun` starts or a loop repeats."""
    text = "\n".join(content for language, content in blocks(page) if language in ("console", "bash"))
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(found[1], comments=True) for line in lines if (found := COMMAND.search(line))]


def test_options_of_commands_exist() -> None:
    found = [(page.stem, words) for page in [*PAGES, ROOT / "CONTRIBUTING.md"] for words in commands(page)]
    assert len(found) > 20
    for page, words in found:
        command: Any = get_command(app)
        for word in words[: 2 if words[0] == "benchmark" else 1]:
            command = command.commands[word]
        known = {name for parameter in command.params for name in parameter.opts}
        for word in words:
            option = word.partition("=")[0]
            assert not option.startswith("--") or option in known, f"{page}: {shlex.join(words)}"


# The command, with fewer steps and seeds.
SHORT = """#!/bin/bash
case "$1" in
    train) [[ " $* " == *" --resume "* ]] && more="--steps 4" || more="--steps 2" ;;
    compare) more="--steps 2 --seeds 0" ;;
    benchmark) more="--tokens 32 --lengths 16 --layers 1 --repeats 1" ;;
esac
set -- "${@/#base/demo}"  # a smaller preset
exec python -m synthesizer_lab "$@" $more
"""
# What is not run: downloads, installations, long measurements, several machines, sharding (torch warns).
OMITTED = re.compile(r"^(?:pip|make|python benchmarks/)|hub:|--nnodes|--sharding")
# Pages whose console blocks run in order, and Python that needs their runs; of the others the first block, or none.
WALKS = ("README", "baselines", "classification", "comparing", "glue", "inspecting", "language-modeling", "pretraining")
WALKS += ("distributed", "large-text", "serving", "settings", "summarization-dialogue", "translation")
FIRST_BLOCK = ("converting", "generation")


def write_data(folder: Path) -> None:
    """Small data under the names that the pages use."""
    phrases = make_phrases(300, 20)["train"]
    english, german = [phrase.english for phrase in phrases], [phrase.german for phrase in phrases]
    classes = [f'{i % 4 + 1},News,"{text}"' for i, text in enumerate(english)]
    lines = {
        "ag_news/{}.csv": ["Class Index,Title,Description", *classes],
        "reviews.csv": ["text,label", *(f'"{text}",{i % 2}' for i, text in enumerate(english))],
        "new.csv": ["text", *(f'"{text}"' for text in english[:4])],
        "snli/{}.tsv": [f"{text}\t{text}\t{i % 3}" for i, text in enumerate(english)],
        "glue/STS-B/{}.tsv": [
            "sentence1\tsentence2\tscore",
            *(f"{text}\t{text}\t{i % 5}.0" for i, text in enumerate(english)),
        ],
        "cnn_dailymail/{}.jsonl": [json.dumps({"article": text, "highlights": text}) for text in english],
        "scitldr/{}.jsonl": [json.dumps({"source": [text], "target": [text]}) for text in english],
        "personachat/{}.txt": [f"{i % 3 + 1} {text}\t{text}" for i, text in enumerate(english)],
        "lm1b/{}.txt": english,
        "text/{}.txt": english,
        "multi30k/{}.en": english,
        "multi30k/{}.de": german,
        "pairs/{}.en": english,
        "pairs/{}.de": german,
    }
    for path, content in lines.items():
        for split in ("train", "dev", "valid", "test", "test_2016_flickr") if "{}" in path else ("",):
            file = folder / path.format(split)
            file.parent.mkdir(parents=True, exist_ok=True)
            chosen = content if split in ("train", "") or path.startswith("text") else content[:21]
            file.write_text("\n".join([*chosen, ""]), encoding="utf-8")
    write_glue(folder / "data/glue", 8, 4)
    write_superglue(folder / "data/superglue", 8, 4)


@pytest.mark.slow
@pytest.mark.parametrize("page", [*WALKS, *FIRST_BLOCK])
def test_console_lines_run(page: str, tmp_path: Path) -> None:
    write_data(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (script := tmp_path / "bin/synthesizer").parent.mkdir()
    script.write_text(SHORT)
    script.chmod(0o755)
    file = "README.md" if page == "README" else f"docs/{page}.md"
    parts = [
        content if language == "console" else f"python - <<'END'\n{content}END\n"
        for language, content in blocks(ROOT / file)
        if language == "console" or (language == "python" and file not in RUNNABLE)
    ]
    text = "".join(parts[: 1 if page in FIRST_BLOCK else None]).replace("\\\n", " ")
    lines = text.replace("-m synthesizer_lab", "--no-python synthesizer").splitlines()
    kept = [line for line in lines if not OMITTED.search(line)]
    path = f"{script.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-eux", "-c", "\n".join(kept)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Warning" not in done.stderr


@pytest.mark.slow
def test_functions_of_contributing_pass_the_tests_of_all_functions(tmp_path: Path) -> None:
    """Followed step by step in a copy: two files, two entries in the tests."""
    for path in ROOT.glob("[!.]*"):
        place = tmp_path / path.name
        shutil.copytree(path, place) if path.name in ("src", "tests") else place.symlink_to(path)
    code = [content for language, content in blocks(ROOT / "CONTRIBUTING.md") if language == "python"]
    synthesizers, facts = tmp_path / "src/synthetic_attention/synthesizers", tmp_path / "tests/layers.py"
    (synthesizers / "scaled_random.py").write_text(code[0])
    (synthesizers / "tanh_dense.py").write_text(code[0].partition("@register")[0] + code[2])
    facts.write_text(facts.read_text().replace("FUNCTIONS = {", f"FUNCTIONS = {{{code[1]}{code[3]}"))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "scaled_random or tanh_dense"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 100


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_links_lead_to_files_and_headings() -> None:
    found = [
        (page, page.parent / target if target else page, anchor)
        for page in [*PAGES, ROOT / "CONTRIBUTING.md"]
        for target, anchor in LINK.findall(page.read_text(encoding="utf-8"))
    ]
    for source in (ROOT / "src").rglob("*.py"):
        found += [(source, ROOT / named, "") for named in NAMED.findall(source.read_text(encoding="utf-8"))]
    assert len(found) > 100
    for page, target, anchor in found:
        assert target.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(target), f"{page}: {target}#{anchor}"
