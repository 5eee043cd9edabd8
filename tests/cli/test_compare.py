"""synthesizer compare, as it is called."""

import json
from pathlib import Path

import pytest

from cli.conftest import LANGUAGES, SETS, Call, check_error


@pytest.fixture
def compare(corpus: Path, tmp_path: Path) -> list[object]:
    """Arguments of a comparison of two rows that works, into tmp_path/out."""
    rows = ["--synthesizers", "random@num_heads=1,random@num_heads=2", "--output", tmp_path / "out"]
    return ["compare", "translation", "--data", corpus, *LANGUAGES, "--num-beams", 1, *rows, "--steps", 2, *SETS]


@pytest.mark.slow
def test_a_comparison(call: Call, compare: list[object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, text, err = call(*compare)
    assert code == 0, err
    assert "random@num_heads=1" in text
    assert str(out / "table.md") in err
    assert "| random@num_heads=2 |" in (out / "table.md").read_text(encoding="utf-8")
    # Each is a run that the other commands open.
    run = out / "random@num_heads=1/seed-0"
    assert json.loads((run / "config.json").read_text(encoding="utf-8"))["num_heads"] == 1
    assert call("generate", run, "one")[0] == 0
    assert call("evaluate", run, "--num-beams", 1)[0] == 0
    check_error(call("train", "translation", "--output", run, "--resume"), "2 steps")
    _, text, _ = call(*compare, "--json")
    assert json.loads(text) == json.loads((out / "results.json").read_text(encoding="utf-8"))


def test_a_failed_run_is_an_error(call: Call, compare: list[object]) -> None:
    compare[compare.index("--synthesizers") + 1] = "vanilla@learning_rate=4e9,vanilla"
    code, text, err = call(*compare)
    assert code == 1
    assert "vanilla" in text
    assert err.splitlines()[-1].startswith("Error: 1 of 2 runs failed (vanilla@learning_rate=4e9, seed 0: ")


@pytest.mark.parametrize(
    ("extra", "fact", "code"),
    [
        (["--synthesizers", "randm"], "'randm'", 1),
        (["--num-beams", "0"], "--num-beams", 2),
        (["--truncate", "--on-long", "drop"], "--on-long drop", 2),
        (["--output", "/dev/null"], "/dev/null", 1),
    ],
)
def test_wrong_options(
    call: Call, compare: list[object], tmp_path: Path, extra: list[str], fact: str, code: int
) -> None:
    check_error(call(*compare, *extra), fact, code=code)
    assert not (tmp_path / "out").exists()


def test_missing_options(call: Call, corpus: Path) -> None:
    command = ("compare", "translation", "--output", "out", "--data", corpus)
    check_error(call(*command), "--synthesizers", code=2)
    check_error(call(*command, "--synthesizers", "vanilla"), "--source")
