"""The mean of several checkpoints: taken if it validates as well, and the same whatever interrupted the run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from synthesizer_lab.tasks.translation import Translation
from synthesizer_lab.training.checkpoint import averaged_weights
from synthesizer_lab.training.run import resume_run
from synthesizer_lab.training.run_folder import RunFolder
from training.runs import Kill, Small, assert_same_runs, silent, start, start_and_kill

OPTIONS = ("average_checkpoints=3", "eval_steps=2", "max_steps=10")
# Validations at 2, 4, … 10, and that of the mean.
SCORES = [1.0, 4.0, 3.0, 2.0, 3.5, 4.0]


class Scored(Translation):
    """Its validations have these scores, one after the other."""

    scores: ClassVar[Iterator[float]]

    def validate(self, *args: Any) -> dict[str, float | str]:
        return {"bleu": next(self.scores), "chrf": 0.0}


def _scored(*scores: float) -> Scored:
    Scored.scores = iter(scores)
    return Scored("en", "de")


def test_a_mean_that_validates_as_well_is_the_best_model(corpus: Path, tmp_path: Path, small: Small) -> None:
    run = tmp_path / "run"
    kept: dict[int, dict[str, torch.Tensor]] = {}

    def look() -> None:
        for checkpoint in (run / "checkpoints").iterdir():
            kept[int(checkpoint.name.split("-")[1])] = load_file(checkpoint / "model.safetensors")

    class Look(Kill):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            look()

    metrics = start(corpus, run, small(*OPTIONS), task=_scored(*SCORES), callbacks=[Look(0, look)]).metrics
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
    assert sorted(path.name for path in (checkpoint / "snapshots").iterdir()) == ["4.safetensors", "6.safetensors"]
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert entries[-1]["averaged"] == [4, 6, 10]
    assert entries[-1]["average_bleu"] == 4.0
    # The model can be on another device than the files; "meta" stands for it.
    other = RunFolder(run).load(_scored(), torch.device("cpu"))[0].to("meta")
    with averaged_weights(other, 10, run / "checkpoints", [4, 10]):
        assert other.device.type == "meta"


def test_a_mean_that_is_worse_is_not_taken(corpus: Path, tmp_path: Path, small: Small) -> None:
    metrics = start(corpus, tmp_path / "run", small(*OPTIONS), task=_scored(*SCORES[:5], 3.9)).metrics
    assert metrics["best"]["step"] == 4
    assert "averaged" not in metrics["best"]


@pytest.mark.parametrize("killed_at", [5, 9])
def test_a_killed_run_averages_what_an_unbroken_one_does(
    corpus: Path, tmp_path: Path, small: Small, killed_at: int
) -> None:
    expected = start(corpus, tmp_path / "straight", small(*OPTIONS)).metrics
    start_and_kill(corpus, tmp_path / "killed", small(*OPTIONS), killed_at)
    assert resume_run(tmp_path / "killed", report=silent).metrics["best"] == expected["best"]
    assert len(expected["best"]["averaged"]) == 3
    assert_same_runs(tmp_path / "straight", tmp_path / "killed")
