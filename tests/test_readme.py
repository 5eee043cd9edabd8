"""README.md: its Python runs and prints what it says; its commands and links exist."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from documents import ROOT, blocks, run
from synthetic_attention.cli import app

README = ROOT / "README.md"


def test_python_prints_what_the_page_shows():
    results = run(README)
    assert results
    for source, printed, expected in results:
        assert printed == expected, source


def test_python_is_a_dozen_lines_or_so():
    (source,) = [content for language, content in blocks(README) if language == "python"]
    assert len(source.strip().splitlines()) <= 16


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        assert target.startswith("https://") or (ROOT / path).exists(), target
        if anchor and not target.startswith("https://"):
            titles = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles], target


def _commands() -> list[str]:
    lines = [line for language, content in blocks(README) if language == "console" for line in content.splitlines()]
    return [line for line in lines if line.startswith("synthesizer ")]


@pytest.mark.parametrize("command", _commands())
def test_options_of_the_commands_exist(command):
    _, *arguments = shlex.split(command)
    # A group, as benchmark is one, has commands of its own.
    name = arguments[: 2 if arguments[0] == "benchmark" else 1]
    shown = CliRunner().invoke(app, [*name, "--help"], terminal_width=200).output
    for option in arguments:
        assert not option.startswith("--") or option in shown, option


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make (\w+)`", README.read_text(encoding="utf-8")):
        assert f"\n{target}:" in makefile, target
