"""synthesizer compare, as it is called."""

import gc
import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import SMALL
from documents import ROOT, blocks
from synthetic_attention.compare import work
from synthetic_attention.compare.rows import parse_rows, parse_seeds
from synthetic_attention.training.trainer import SynthesizerTrainer


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walking through all objects of the tests' process takes as long as a run of these."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def compare(corpus: Path, tmp_path: Path) -> list[object]:
    """Arguments of a comparison of two rows that works, into tmp_path/out."""
    sets = [argument for override in SMALL for argument in ("--set", override)]
    data = ["--data", corpus, "--source", "en", "--target", "de", "--beams", 1]
    rows = ["--synthesizers", "random@num_heads=1,random@num_heads=2"]
    return ["compare", "translation", *data, *rows, "--output", tmp_path / "out", "--steps", 2, *sets]


def test_a_study_in_one_call(call, compare: list[object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, text, err = call(*compare)
    assert code == 0, err
    assert "random@num_heads=1" in text
    assert "Traceback" not in err
    assert "run 2 of 2: random@num_heads=2, seed 0" in err
    assert f"the table is in {out / 'table.md'}" in err
    assert "| random@num_heads=2 |" in (out / "table.md").read_text(encoding="utf-8")
    # Each is a run that the other commands open.
    run = out / "random@num_heads=1/seed-0"
    assert json.loads((run / "config.json").read_text(encoding="utf-8"))["num_heads"] == 1
    assert call("generate", run, "one")[0] == 0
    assert call("evaluate", run, "--beams", 1)[0] == 0
    code, _, err = call("train", "translation", "--output", run, "--resume")
    assert (code, "the run is complete, with 2 steps" in err) == (1, True)
    code, text, _ = call(*compare, "--json")
    assert code == 0
    assert json.loads(text) == json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert text.count("\n") == 1


def test_an_interrupt_says_how_to_go_on(
    call, compare: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = SynthesizerTrainer._loss

    def interrupted(self: SynthesizerTrainer) -> float:
        os.kill(os.getpid(), signal.SIGINT)
        return loss(self)

    with monkeypatch.context() as patch:
        patch.setattr(SynthesizerTrainer, "_loss", interrupted)
        code, text, err = call(*compare)
    assert code == 130
    assert "0 of 1" in text
    assert err.endswith("stopped; the same command goes on with what is left\n")

    def at_once(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(work, "evaluate_run", at_once)
        code, text, err = call(*compare)
    assert (code, text) == (130, "")
    assert err.endswith("stopped; the same command goes on with what is left\nError: interrupted\n")
    assert call(*compare)[0] == 0


def test_a_failure_is_in_the_status(call, compare: list[object]) -> None:
    compare[compare.index("--synthesizers") + 1] = "vanilla@learning_rate=1e30,vanilla"
    code, text, err = call(*compare)
    assert code == 1
    assert "vanilla@learning_rate=1e30, seed 0 failed: training diverged" in " ".join(text.split())
    assert err.splitlines()[-1].startswith(
        "Error: 1 of 2 runs failed (vanilla@learning_rate=1e30, seed 0: training diverged"
    )


@pytest.mark.parametrize(
    ("extra", "message", "code"),
    [
        (["--synthesizers", "randm"], "unknown synthesizer 'randm'", 1),
        (["--synthesizers", "random@num_heads=3"], "num_heads=3", 1),
        (["--seeds", "0,0"], "expected each seed once", 1),
        (["--seeds", "-1"], "got seed -1", 1),
        (["--preset", "huge"], "unknown preset 'huge'", 1),
        (["--steps", "0"], "steps=0; expected more than 0", 1),
        (["--split", "tset"], "no files tset{.en | .de}; the splits there are: ", 1),
        (["--target", "fr"], "train.fr: no such file", 1),
        (["--set", "vocab_size=9"], "got vocab_size=9; expected at least", 1),
        (["--beams", "0"], "--beams", 2),
        (["--truncate", "--drop-long"], "exclude each other", 2),
        (["--on-long", "drop"], "expected one of: error, split, truncate", 2),
        (["--device", "nonsense"], "got device 'nonsense'", 1),
        (["--output", "/dev/null"], "exists and is not a folder", 1),
    ],
)
def test_wrong_options_are_one_line_and_write_nothing(
    call, compare: list[object], tmp_path: Path, extra: list[str], message: str, code: int
) -> None:
    actual, out, err = call(*compare, *extra)
    assert (actual, out) == (code, ""), err
    assert err.count("\n") == 1, err
    assert err.startswith("Error: ")
    assert message in err
    assert not (tmp_path / "out").exists()


def test_rows_and_what_the_task_needs_are_asked_for(call, corpus: Path) -> None:
    code, _, err = call("compare", "translation", "--output", "out", "--data", corpus)
    assert (code, "--synthesizers" in err) == (2, True)
    code, _, err = call("compare", "translation", "--synthesizers", "vanilla", "--output", "out", "--data", corpus)
    assert (code, "--source is missing" in err) == (2, True)


def test_the_commands_of_the_documentation_are_right(call) -> None:
    help_ = call("compare", "--help")[1]
    page = ROOT / "docs/comparing.md"
    commands = [line for kind, content in blocks(page) if kind == "console" for line in content.splitlines()]
    assert len(commands) == 4
    for command in commands:
        program, name, _, *arguments = shlex.split(command)
        assert (program, name) == ("synthesizer", "compare")
        arguments = [argument for argument in arguments if argument != "--truncate"]
        options = dict(zip(arguments[::2], arguments[1::2], strict=True))
        assert all(option in help_ for option in options)
        assert len(parse_rows([options["--synthesizers"]])) >= 2
        assert parse_seeds(options.get("--seeds", "0")) in ([0], [0, 1, 2])
