"""A checkpoint as it lies on disk: Trainer's files, and the progress that they do not have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..tasks import UserError
from .failures import damage_reported
from .hyperparameters import TrainingArguments

__all__ = ["Checkpoint", "Progress", "Snapshot", "checkpoint_step", "is_complete", "snapshot_paths"]

_NAME = re.compile(r"checkpoint-(\d+)")
# Without some of them Trainer would go on all the same, from other states.
_FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json")


def checkpoint_step(path: Path) -> int | None:
    """The step in the name of a checkpoint; None for what is no checkpoint."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def snapshot_paths(checkpoint: Path, steps: Iterable[int]) -> list[Path]:
    """Where a checkpoint has the weights of these steps; those of its own step are those it goes on from."""
    own = checkpoint_step(checkpoint)
    return [checkpoint / ("model.safetensors" if step == own else f"snapshots/{step}.safetensors") for step in steps]


def is_complete(training: TrainingArguments, step: int, seconds: float) -> bool:
    """Whether training has reached its end, by steps or by minutes."""
    by_steps = training.steps is not None and step >= training.steps
    return by_steps or (training.minutes is not None and seconds >= 60 * training.minutes)


# A step whose weights are kept, and the score of its validation.
Snapshot = tuple[int, float]


@dataclass
class Progress:
    """What a checkpoint has to remember beside Trainer's own state.

    Attributes:
        seconds: on the training clock.
        tokens: trained on.
        best, last: the scores of the best and of the last validation.
        snapshots: the validations whose weights are kept to be averaged.
    """

    seconds: float = 0.0
    tokens: int = 0
    best: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)

    NAME = "progress.json"

    def __post_init__(self) -> None:
        """Refuse what would fail far from here."""
        numbers, scores = (self.seconds, self.tokens), (self.best, self.last)
        if not all(isinstance(x, int | float) for x in numbers) or not all(isinstance(x, dict) for x in scores):
            raise TypeError("expected numbers for seconds and tokens, scores for best and last")
        # JSON has no tuples.
        self.snapshots = [(int(step), float(score)) for step, score in self.snapshots]

    def to_json(self) -> str:
        """The content of its file."""
        return json.dumps(asdict(self), allow_nan=False)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to go on from."""

    path: Path
    step: int
    progress: Progress

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """The checkpoint at `path`.

        Raises:
            UserError: files are missing or damaged.
        """
        step = checkpoint_step(path)
        missing = [name for name in (*_FILES, Progress.NAME) if not (path / name).is_file()]
        if step is None or missing or not any(path.glob("rng_state*.pth")):
            raise UserError(f"{path}: the checkpoint is damaged: {', '.join(missing) or 'rng_state.pth'} missing")
        with damage_reported(f"{path}: the checkpoint"):
            progress = Progress(**json.loads((path / Progress.NAME).read_text(encoding="utf-8")))
            if json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))["global_step"] != step:
                raise UserError(f"{path}: the checkpoint is damaged: trainer_state.json is of another step")
        for snapshot in snapshot_paths(path, (step for step, _ in progress.snapshots)):
            if not snapshot.is_file():
                raise UserError(f"{path}: the checkpoint is damaged: {snapshot.relative_to(path)} missing")
        return cls(path, step, progress)

    def is_complete(self, training: TrainingArguments) -> bool:
        """Whether training had reached its end here."""
        return is_complete(training, self.step, self.progress.seconds)

    def lacks_validation(self, training: TrainingArguments) -> bool:
        """Whether the validation that is due here was interrupted."""
        due = self.step % training.eval_interval == 0 or self.is_complete(training)
        return due and self.progress.last.get("step") != self.step
