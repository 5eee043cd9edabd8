"""Runs that were stopped or killed, and go on as if they had not been."""

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from synthetic_attention.tasks import UserError
from synthetic_attention.training.evaluation import generate_lines
from synthetic_attention.training.session import resume_run
from synthetic_attention.training.trainer import SynthesizerTrainer
from training.runs import Kill, KilledError, Small, assert_same_runs, die, silent, start, weights


@pytest.mark.parametrize("killed_at", [3, 7])
def test_killed_and_resumed_equals_straight(corpus: Path, tmp_path: Path, small: Small, killed_at: int) -> None:
    start(corpus, tmp_path / "straight", small())
    with pytest.raises(KilledError):
        start(corpus, tmp_path / "killed", small(), watch=lambda *_: Kill(killed_at, die))
    resume_run(tmp_path / "killed", report=silent)
    assert_same_runs(tmp_path / "straight", tmp_path / "killed")


@pytest.mark.parametrize("step", [4, 8])
@pytest.mark.parametrize("method", ["_loss", "_score", "write_metrics", "_progress"])
def test_killed_in_validation_and_resumed_equals_straight(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch, method: str, step: int
) -> None:
    """Before, between and after the parts of a validation: the steps are not lost, and it is done once more."""
    start(corpus, tmp_path / "straight", small())
    original = getattr(SynthesizerTrainer, method)

    def die_at_step(self: SynthesizerTrainer, *arguments: float) -> Any:
        # The checkpoint, which is saved first, calls _progress too.
        if self.state.global_step == self._saved_step == step:
            raise KilledError
        return original(self, *arguments)

    monkeypatch.setattr(SynthesizerTrainer, method, die_at_step)
    with pytest.raises(KilledError):
        start(corpus, tmp_path / "killed", small())
    monkeypatch.undo()
    lines: list[str] = []
    metrics = resume_run(tmp_path / "killed", report=lines.append).metrics
    assert any(f"from checkpoint-{step}" in line for line in lines)
    assert metrics["finished"]
    assert_same_runs(tmp_path / "straight", tmp_path / "killed")


@pytest.mark.parametrize("step", [4, 8])
def test_a_signal_in_validation_gives_it_up_at_once(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    run, loss = tmp_path / "run", SynthesizerTrainer._loss

    def interrupted(self: SynthesizerTrainer) -> float:
        if self.state.global_step == step:
            os.kill(os.getpid(), signal.SIGINT)
        return loss(self)

    monkeypatch.setattr(SynthesizerTrainer, "_loss", interrupted)
    outcome = start(corpus, run, small())
    monkeypatch.undo()
    assert outcome.signal == signal.SIGINT
    assert (outcome.metrics["steps"], outcome.metrics["finished"]) == (step, False)
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"checkpoint-{step}"]
    assert resume_run(run, report=silent).metrics["finished"]
    start(corpus, tmp_path / "straight", small())
    assert_same_runs(tmp_path / "straight", run)


def test_a_signal_after_the_last_validation_changes_nothing(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = SynthesizerTrainer.write_metrics

    def interrupted(self: SynthesizerTrainer) -> dict[str, Any]:
        if self.state.global_step == 8:
            os.kill(os.getpid(), signal.SIGINT)
            monkeypatch.undo()
        return write(self)

    monkeypatch.setattr(SynthesizerTrainer, "write_metrics", interrupted)
    outcome = start(corpus, tmp_path / "run", small())
    assert outcome.signal is None
    assert outcome.metrics["finished"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_to_go_on_from(corpus: Path, tmp_path: Path, small: Small, number: int) -> None:
    run = tmp_path / "run"
    before = signal.getsignal(number)
    outcome = start(corpus, run, small(), watch=lambda *_: Kill(3, lambda: os.kill(os.getpid(), number)))
    assert signal.getsignal(number) is before
    assert outcome.signal == number
    assert not outcome.metrics["finished"]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["checkpoint-3"]
    # Not validated yet, but usable.
    assert generate_lines(run, ["one", ""], beams=1)[0][1] == ""
    resume_run(run, report=silent)
    start(corpus, tmp_path / "straight", small())
    for name, value in weights(tmp_path / "straight").items():
        assert torch.equal(value, weights(run)[name]), name


def test_a_second_signal_interrupts_at_once(corpus: Path, tmp_path: Path, small: Small) -> None:
    def twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        start(corpus, tmp_path / "run", small(), watch=lambda *_: Kill(6, twice))
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["checkpoint-4"]


def test_a_kill_while_saving_leaves_the_checkpoint_before(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = SynthesizerTrainer._save_rng_state

    def die_at_8(self: SynthesizerTrainer, folder: str) -> None:
        if self.state.global_step == 8:
            raise KilledError
        save(self, folder)

    monkeypatch.setattr(SynthesizerTrainer, "_save_rng_state", die_at_8)
    with pytest.raises(KilledError):
        start(corpus, tmp_path / "run", small())
    monkeypatch.undo()
    lines: list[str] = []
    resume_run(tmp_path / "run", report=lines.append)
    assert any("from checkpoint-4" in line for line in lines)


def test_resuming_with_other_settings_or_data_is_refused(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    start(corpus, run, small("steps=1"))
    with pytest.raises(UserError, match=r"got seed 4, but .* was started with 3"):
        resume_run(run, expected={"seed": 4}, steps=2)
    other.mkdir()
    for path in corpus.iterdir():
        (other / path.name).write_text(path.read_text(encoding="utf-8").replace("The", "Those"), encoding="utf-8")
    with pytest.raises(UserError, match="the train data is not what"):
        resume_run(run, data=other, steps=2)
    with pytest.raises(UserError, match="no run"):
        resume_run(other, steps=2)


def test_resuming_notes_versions_and_data_and_cleans_up(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    monkeypatch.setattr(sys, "argv", ["/bin/synthesizer", "train", "--synthesizer", "{encoder: dense}"])
    (tmp_path / "data").mkdir()
    for path in corpus.iterdir():
        (tmp_path / "data" / path.name).write_bytes(path.read_bytes())
    start(tmp_path / "data", run, small("steps=1"))
    (tmp_path / "data").rename(moved)
    for folder in (run / ".partial-1", run / "checkpoints/.partial"):
        folder.mkdir()
    with pytest.raises(UserError, match="pass --data to say where it is"):
        resume_run(run, steps=2)
    resume_run(run, steps=2, data=moved, report=silent)
    info = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    assert info["data"] == str(moved)
    assert info["resumed_with"] == [info["versions"]]
    assert shlex.split(info["commands"][1]) == ["synthesizer", "train", "--synthesizer", "{encoder: dense}"]
    assert not [path for path in run.rglob("*") if "partial" in path.name]
