"""Two processes that train one model, as torchrun starts them, on a CPU."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml

from synthesizer_lab.training.run import resume_run
from training.conftest import SMALL
from training.runs import Small, end_processes, start, start_processes, weights, without_times

pytestmark = pytest.mark.slow
OPTIONS = ("dropout_rate=0", "logging_steps=1", "max_steps=4")


def _run_both(arguments: list[str], second: Sequence[str] = ()) -> tuple[list[int | None], list[str]]:
    """Exit codes and standard errors; the second process has further arguments."""
    processes = start_processes(arguments, 2, second)
    errors = end_processes(processes, 120)
    assert "Traceback" not in "".join(errors)
    return [process.returncode for process in processes], errors


def test_processes_share_large_text(corpus: Path, tmp_path: Path, small: Small) -> None:
    """One of them writes the table and trains the tokenizer; the batches are those of one process."""
    # A tokenizer of a part of the text makes more tokens of the rest.
    options = (*OPTIONS, "max_position_embeddings=96", "tokenizer_characters=1000", "eval_steps=4")
    sets = [word for setting in (*SMALL, *options) for word in ("--set", setting)]
    arguments = ["train", "translation", "--data", str(corpus), "--source", "en", "--target", "de", "--seed", "3"]
    codes, errors = _run_both([*arguments, "--output", str(tmp_path / "two"), *sets])
    assert codes == [0, 0], errors
    start(corpus, tmp_path / "one", small(*options, "gradient_accumulation_steps=2"))
    expected, got = ([e for e in without_times(tmp_path / run / "log.jsonl") if "loss" in e] for run in ("one", "two"))
    assert [e["tokens"] for e in got] == [e["tokens"] for e in expected]
    assert [e["loss"] for e in got] == pytest.approx([e["loss"] for e in expected], rel=1e-6)


def test_the_number_of_processes_changes_nothing(corpus: Path, tmp_path: Path, small: Small) -> None:
    """Two processes, then one, then two: the weights are those of one process that accumulates two batches."""
    run = tmp_path / "run"
    sets = [word for setting in (*SMALL, *OPTIONS) for word in ("--set", setting)]
    arguments = ["train", "translation", "--data", str(corpus), "--source", "en", "--target", "de", "--seed", "3"]
    arguments += ["--output", str(run), "--resume-if-exists", "--batches-per-update", "2", *sets]
    codes, errors = _run_both(arguments)
    assert codes == [0, 0], errors
    assert errors[0].count("the best model is in") == 1
    assert errors[1] == ""
    lines: list[str] = []
    resume_run(run, max_steps=5, report=lines.append)
    assert "2 batches per update: gradient_accumulation_steps=2" in lines
    codes, errors = _run_both([*arguments, "--steps", "8"])
    assert codes == [0, 0], errors
    assert yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))["processes"] == 2
    straight = tmp_path / "straight"
    start(corpus, straight, small(*OPTIONS, "max_steps=8", "gradient_accumulation_steps=2"))
    for name, value in weights(straight).items():
        assert torch.equal(value, weights(run)[name]), name
    expected, got = ([e for e in without_times(each / "log.jsonl") if "loss" in e] for each in (straight, run))
    assert [(e["step"], e["tokens"]) for e in got] == [(e["step"], e["tokens"]) for e in expected]
    assert [e["loss"] for e in got] == pytest.approx([e["loss"] for e in expected], rel=1e-6)


def test_processes_that_disagree_end_together(corpus: Path, tmp_path: Path) -> None:
    arguments = ["train", "translation", "--data", str(corpus), "--source", "en", "--target", "de", "--steps", "1"]
    codes, errors = _run_both([*arguments, "--output", str(tmp_path / "run"), "--seed", "0"], ["--seed", "1"])
    assert codes == [1, 1]
    assert all("differ in seed" in error for error in errors)
    assert not (tmp_path / "run").exists()
