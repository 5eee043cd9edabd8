"""The mean of several checkpoints: taken if it validates as well, and the same whatever interrupted the run."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from synthetic_attention.tasks import UserError
from synthetic_attention.training.averaging import averaged, best_snapshots
from synthetic_attention.training.checkpoint import Checkpoint
from synthetic_attention.training.session import resume_run
from synthetic_attention.training.trainer import SynthesizerTrainer
from training.runs import Kill, KilledError, Small, assert_same_runs, die, silent, start, weights

OPTIONS = ("average_checkpoints=3", "eval_interval=2", "steps=10")
# Validations at 2, 4, … 10, and that of the mean.
SCORES = {2: 1.0, 4: 4.0, 6: 3.0, 8: 2.0, 10: 3.5}


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Validations have the scores above; what is validated again at the last step is the mean, with score 11."""
    scores = {**SCORES, 11: 4.0}

    def score(self: SynthesizerTrainer, loss: float) -> dict[str, float]:
        step, validated = self.state.global_step, self.__dict__.setdefault("validated_steps", set())
        again = step in validated
        validated.add(step)
        return {"bleu": scores[11 if again else step], "chrf": 0.0}

    monkeypatch.setattr(SynthesizerTrainer, "_score", score)
    return scores


def test_the_best_are_kept_and_of_equals_the_later() -> None:
    snapshots = [(2, 1.0), (4, 3.0), (6, 2.0), (8, 3.0), (10, 2.0)]
    assert best_snapshots(snapshots, 3, larger_is_better=True) == [(4, 3.0), (8, 3.0), (10, 2.0)]
    assert best_snapshots(snapshots, 2, larger_is_better=False) == [(2, 1.0), (10, 2.0)]


def test_weights_are_averaged_for_a_while(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    # Of equal weights the mean is these weights, exactly.
    files = [{"weight": torch.full((3, 2), number), "bias": torch.full((3,), 0.1)} for number in (1.0, 2.0, 6.0)]
    for number, tensors in enumerate(files):
        save_file(tensors, tmp_path / f"{number}.safetensors")
    with averaged(model, sorted(tmp_path.iterdir())):
        assert torch.equal(model.weight, torch.full((3, 2), 3.0))
        assert torch.equal(model.bias, torch.full((3,), 0.1))
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())


def test_a_mean_that_validates_as_well_is_the_best_model(
    corpus: Path, tmp_path: Path, small: Small, scored: dict[int, float]
) -> None:
    run = tmp_path / "run"
    kept: dict[int, dict[str, torch.Tensor]] = {}

    def look() -> None:
        for checkpoint in (run / "checkpoints").iterdir():
            kept[int(checkpoint.name.split("-")[1])] = load_file(checkpoint / "model.safetensors")

    class Look(Kill):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            look()

    metrics = start(corpus, run, small(*OPTIONS), watch=lambda *_: Look(0, look)).metrics
    look()
    assert metrics["best"]["averaged"] == [4, 6, 10]
    assert metrics["last"]["bleu"] == SCORES[10]
    model = load_file(run / "model.safetensors")
    for name, value in model.items():
        assert torch.allclose(value, (kept[4][name] + kept[6][name] + kept[10][name]) / 3, atol=1e-7), name
    (checkpoint,) = (run / "checkpoints").iterdir()
    # Training would go on from its own weights. Beside them are those of the best validations before.
    assert torch.equal(load_file(checkpoint / "model.safetensors")["encoder.embed_tokens.weight"], _embedding(kept, 10))
    assert sorted(path.name for path in (checkpoint / "snapshots").iterdir()) == [
        f"{step}.safetensors" for step in (4, 6, 8)
    ]
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert entries[-1]["averaged"] == [4, 6, 10]
    assert entries[-1]["average_bleu"] == 4.0


def _embedding(kept: dict[int, dict[str, torch.Tensor]], step: int) -> torch.Tensor:
    return kept[step]["encoder.embed_tokens.weight"]


def test_a_mean_that_is_worse_is_not_taken(
    corpus: Path, tmp_path: Path, small: Small, scored: dict[int, float]
) -> None:
    scored[11] = 3.9
    metrics = start(corpus, tmp_path / "run", small(*OPTIONS)).metrics
    assert metrics["best"]["step"] == 4
    assert "averaged" not in metrics["best"]


@pytest.mark.parametrize("killed_at", [5, 9])
def test_a_killed_run_averages_what_an_unbroken_one_does(
    corpus: Path, tmp_path: Path, small: Small, scored: dict[int, float], killed_at: int
) -> None:
    start(corpus, tmp_path / "straight", small(*OPTIONS))
    with pytest.raises(KilledError):
        start(corpus, tmp_path / "killed", small(*OPTIONS), watch=lambda *_: Kill(killed_at, die))
    assert resume_run(tmp_path / "killed", report=silent).metrics["best"]["averaged"] == [4, 6, 10]
    assert_same_runs(tmp_path / "straight", tmp_path / "killed")


@contextmanager
def during_the_mean(happens: Callable[[], None], before: bool) -> Iterator[None]:
    """Something happens before or after the mean of the weights is made and validated."""
    average = SynthesizerTrainer._average

    def disturbed(self: SynthesizerTrainer, last: dict[str, Any]) -> None:
        if before:
            happens()
        average(self, last)
        if not before:
            happens()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SynthesizerTrainer, "_average", disturbed)
        yield


def test_a_kill_while_the_mean_is_validated_does_no_harm(
    corpus: Path, tmp_path: Path, small: Small, scored: dict[int, float]
) -> None:
    start(corpus, tmp_path / "straight", small(*OPTIONS))
    with during_the_mean(die, before=False), pytest.raises(KilledError):
        start(corpus, tmp_path / "killed", small(*OPTIONS))
    assert resume_run(tmp_path / "killed", report=silent).metrics["finished"]
    assert_same_runs(tmp_path / "straight", tmp_path / "killed")


def test_a_run_that_is_stopped_while_the_mean_is_validated_is_not_finished(
    corpus: Path, tmp_path: Path, small: Small, scored: dict[int, float]
) -> None:
    start(corpus, tmp_path / "straight", small(*OPTIONS))
    with during_the_mean(lambda: os.kill(os.getpid(), signal.SIGINT), before=True):
        outcome = start(corpus, tmp_path / "stopped", small(*OPTIONS))
    assert (outcome.signal, outcome.metrics["steps"], outcome.metrics["finished"]) == (signal.SIGINT, 10, False)
    assert resume_run(tmp_path / "stopped", report=silent).metrics["best"]["averaged"] == [4, 6, 10]
    assert_same_runs(tmp_path / "straight", tmp_path / "stopped")


def test_a_lost_snapshot_is_damage(corpus: Path, tmp_path: Path, small: Small, scored: dict[int, float]) -> None:
    start(corpus, tmp_path / "run", small(*OPTIONS))
    (checkpoint,) = (tmp_path / "run/checkpoints").iterdir()
    (checkpoint / "snapshots/6.safetensors").unlink()
    with pytest.raises(UserError, match=r"the checkpoint is damaged: snapshots/6.safetensors missing"):
        Checkpoint.open(checkpoint)


def test_without_averaging_nothing_is_kept(corpus: Path, tmp_path: Path, small: Small) -> None:
    start(corpus, tmp_path / "run", small())
    (checkpoint,) = (tmp_path / "run/checkpoints").iterdir()
    assert not (checkpoint / "snapshots").exists()
    assert weights(tmp_path / "run")
