"""The mean of several checkpoints: taken if it validates as well, and the same whatever interrupted the run."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.translation import Translation
from synthesizer_lab.training.checkpoint import Checkpoint
from synthesizer_lab.training.run import resume_run
from training.runs import Kill, Small, assert_same_runs, silent, start, start_and_kill

OPTIONS = ("average_checkpoints=3", "eval_steps=2", "max_steps=10")
# Validations at 2, 4, … 10, and that of the mean.
SCORES = [1.0, 4.0, 3.0, 2.0, 3.5, 4.0]


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The BLEU of one validation after the other, from the first again after the last."""
    scores, calls = [*SCORES], itertools.count()

    def validate(self: Translation, *args: Any) -> dict[str, float]:
        return {"bleu": scores[next(calls) % len(scores)], "chrf": 0.0}

    monkeypatch.setattr(Translation, "validate", validate)
    return scores


def test_a_mean_that_validates_as_well_is_the_best_model(
    corpus: Path, tmp_path: Path, small: Small, scored: list[float]
) -> None:
    run = tmp_path / "run"
    kept: dict[int, dict[str, torch.Tensor]] = {}

    def look() -> None:
        for checkpoint in (run / "checkpoints").iterdir():
            kept[int(checkpoint.name.split("-")[1])] = load_file(checkpoint / "model.safetensors")

    class Look(Kill):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            look()

    metrics = start(corpus, run, small(*OPTIONS), callbacks=[Look(0, look)]).metrics
    look()
    assert metrics["best"]["averaged"] == [4, 6, 10]
    assert metrics["last"]["bleu"] == 3.5
    model = load_file(run / "model.safetensors")
    for name, value in model.items():
        assert torch.allclose(value, (kept[4][name] + kept[6][name] + kept[10][name]) / 3, atol=1e-7), name
    (checkpoint,) = (run / "checkpoints").iterdir()
    # Training would go on from its own weights. Beside them are those of the best validations before.
    name = "model.embed_tokens.weight"
    assert torch.equal(load_file(checkpoint / "model.safetensors")[name], kept[10][name])
    assert sorted(path.name for path in (checkpoint / "snapshots").iterdir()) == [
        f"{step}.safetensors" for step in (4, 6, 8)
    ]
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert entries[-1]["averaged"] == [4, 6, 10]
    assert entries[-1]["average_bleu"] == 4.0


def test_a_mean_that_is_worse_is_not_taken(corpus: Path, tmp_path: Path, small: Small, scored: list[float]) -> None:
    scored[5] = 3.9
    metrics = start(corpus, tmp_path / "run", small(*OPTIONS)).metrics
    assert metrics["best"]["step"] == 4
    assert "averaged" not in metrics["best"]


@pytest.mark.parametrize("killed_at", [5, 9])
def test_a_killed_run_averages_what_an_unbroken_one_does(
    corpus: Path, tmp_path: Path, small: Small, scored: list[float], killed_at: int
) -> None:
    start(corpus, tmp_path / "straight", small(*OPTIONS))
    start_and_kill(corpus, tmp_path / "killed", small(*OPTIONS), killed_at)
    assert resume_run(tmp_path / "killed", report=silent).metrics["best"]["averaged"] == [4, 6, 10]
    assert_same_runs(tmp_path / "straight", tmp_path / "killed")


def test_a_lost_snapshot_is_damage(corpus: Path, tmp_path: Path, small: Small, scored: list[float]) -> None:
    start(corpus, tmp_path / "run", small(*OPTIONS))
    (checkpoint,) = (tmp_path / "run/checkpoints").iterdir()
    (checkpoint / "snapshots/6.safetensors").unlink()
    with pytest.raises(UserError, match=r"snapshots/6.safetensors missing"):
        Checkpoint.open(checkpoint)
