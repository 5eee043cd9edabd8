"""synthesizer benchmark: tables, files, and one clear line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synthetic_attention.cli import main

TINY = ("--tokens", "32", "--lengths", "8,16", "--width", "16", "--heads", "2", "--variants", "random,dense")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["benchmark", *arguments])
    return int(ended.value.code or 0)


def test_attention_prints_a_table_and_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png"))
    assert run("attention", *TINY, "--repeats", "1", "--masks", "full,padded", *files) == 0
    shown = capsys.readouterr().out
    assert "speed, full" in shown
    assert "speed, padded" in shown
    assert "2×16" in shown
    found = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert {result["name"] for result in found["results"]} >= {"mha", "t5", "random", "dense"}
    assert {"command", "date", "torch", "processor", "threads"} <= found.keys()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.png"]


def test_a_profile_names_operations(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("attention", *TINY, "--masks", "full", "--profile") == 0
    shown = capsys.readouterr().out
    assert "random, full: percent of a step (calls)" in shown
    assert "dense, full" in shown
    assert "addmm" in shown


def test_memory_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("memory", *TINY, "--json", str(tmp_path / "m.json")) == 0
    assert "peak MB, full" in capsys.readouterr().out
    found = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    assert all(result["peak"] > 0 for result in found["results"])


def test_encoders_are_timed_and_weighed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--layers", "2", "--repeats", "1", "--masks", "full,padded", "--json", str(tmp_path / "e.json"))
    assert run("encoder", *TINY, *options) == 0
    shown = capsys.readouterr().out
    assert "encoder of 2 layers, 2×16, padded, forward + backward" in shown
    assert "nn.TransformerEncoder" in shown
    results = json.loads((tmp_path / "e.json").read_text(encoding="utf-8"))["results"]
    assert len(results) == 4 * 4
    for result in results:
        assert 0 < result["kept"] <= result["peak"]
        assert result["ratio"] == [1, 1, 1] or result["name"] != "vanilla"
    # Vanilla has the queries and keys of its layers beside what random has, which has H·N².
    sizes = {(result["name"], result["length"]): result["parameters"] for result in results}
    assert sizes["vanilla", 8] - sizes["random", 8] == 2 * (2 * (16 * 16 + 16) - 2 * 8 * 8)
    assert sizes["vanilla", 8] == sizes["vanilla", 16]
    assert run("encoder", *TINY, "--masks", "causal") == 2
    assert "an encoder sees the whole input" in capsys.readouterr().err
    assert run("encoder", *TINY, "--forward", "--repeats", "1") == 0
    assert "forward, inference" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--masks", "ful"), "got mask 'ful'; expected some of: full, causal, padded"),
        (("--lengths", "8,x"), "got --lengths '8,x'; expected numbers"),
        (("--lengths", "64", "--tokens", "32"), "expected lengths of 2 … tokens"),
        (("--dtype", "int8"), "got --dtype int8; expected one of: float32"),
        (("--heads", "3"), "expected heads that divide the width"),
        (("--variants", "radnom"), "got unknown synthesizer 'radnom'"),
        (("--json", "nowhere/a.json"), "its folder does not exist"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("attention", *arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
