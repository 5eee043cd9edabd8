"""synthesizer benchmark generation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synthetic_attention.cli import main

SIZES = {"batch": 3, "prompt": 2, "new-tokens": 4, "layers": 1, "width": 8, "heads": 2, "vocabulary": 20}
TINY = [f"--{name}={size}" for name, size in SIZES.items()]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["benchmark", "generation", *arguments])
    return int(ended.value.code or 0)


def test_a_table_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*TINY, "--variants", "random,dense", "--repeats=1", "--json", str(tmp_path / "g.json")) == 0
    shown = capsys.readouterr().out
    assert "tokens/s" in shown
    assert "× gpt2" in shown
    found = json.loads((tmp_path / "g.json").read_text(encoding="utf-8"))
    assert [result["name"] for result in found["results"]] == ["gpt2", "random", "dense"]
    assert {"command", "date", "torch", "processor", "threads"} <= found.keys()


def test_a_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*TINY, "--variants=random", "--task=translation", "--profile") == 0
    shown = capsys.readouterr().out
    assert "addmm" in shown
    assert "the whole step" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "chess"), "got task='chess'; expected one of"),
        (("--beams", "0"), "got beams=0; expected at least 1"),
        (("--dtype", "int8"), "got --dtype int8"),
        (("--variants", "radnom"), "got unknown synthesizer 'radnom'"),
        (("--json", "nowhere/g.json"), "its folder does not exist"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
