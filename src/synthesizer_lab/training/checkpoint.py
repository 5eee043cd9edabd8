"""Checkpoints: Trainer's files, our progress, and the weights of the best validations, which may be averaged.

`progress.json` is written last. A folder without it is an interrupted save; it is never resumed from. The previous
checkpoint is removed after that. Weights of earlier validations lie in `snapshots/STEP.safetensors`, as hard links
where the file system has them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from ..data.sampler import Place
from ..errors import damage_reported
from .arguments import SynthesizerTrainingArguments
from .sharding import sharded_as

# Trainer would resume without some of them, from another state.
_FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state*.pth")
_PROGRESS = "progress.json"

# The step of a validation whose weights are kept, and its score.
Snapshot = tuple[int, float]


@dataclass
class Progress:
    """The state of a run that Trainer's checkpoint lacks; `best` and `last` are the scores of these validations.

    `tokens` and `batches` are those of all `processes`. `place` is the window of the data that has the next batch.
    """

    seconds: float = 0.0
    tokens: int = 0
    batches: int = 0
    processes: int = 1
    place: Place = field(default_factory=Place)
    best: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # JSON has no tuples.
        self.place = Place(*self.place)
        self.snapshots = [(int(step), float(score)) for step, score in self.snapshots]

    def write(self, checkpoint: Path) -> None:
        """Write `progress.json` in one step."""
        with damage_reported(checkpoint / _PROGRESS, "written"):
            partial = checkpoint / f"{_PROGRESS}.partial"
            partial.write_text(json.dumps(asdict(self), allow_nan=False), encoding="utf-8")
            partial.replace(checkpoint / _PROGRESS)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    step: int
    progress: Progress

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Read the checkpoint at `path`; raises UserError if files are missing or damaged."""
        with damage_reported(f"{path}: the checkpoint"):
            progress = Progress(**json.loads((path / _PROGRESS).read_text(encoding="utf-8")))
            snapshots = [str(file.relative_to(path)) for file in _snapshot_paths(path, progress.snapshots)]
            if missing := [name for name in (*_FILES, *snapshots) if not [*path.glob(name)]]:
                raise ValueError(f"{', '.join(missing)} missing")
        return cls(path, _step(path), progress)

    def is_complete(self, training: SynthesizerTrainingArguments) -> bool:
        """Whether training ends here."""
        return training.is_complete(self.step, self.progress.seconds)

    def lacks_validation(self, training: SynthesizerTrainingArguments) -> bool:
        """Whether a validation is due here and was interrupted."""
        lacks = self.progress.last.get("step") != self.step
        return lacks and (self.step % training.eval_steps == 0 or self.is_complete(training))


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint of the highest step."""
    paths = _complete_paths(folder)
    return Checkpoint.open(paths[-1]) if paths else None


def commit_checkpoint(path: Path, progress: Progress) -> None:
    """Complete a checkpoint that Trainer has written; then remove the others."""
    before = [other for other in _complete_paths(path.parent) if other != path]
    if before:
        old_paths, new_paths = (_snapshot_paths(checkpoint, progress.snapshots) for checkpoint in (before[-1], path))
        for old, new in zip(old_paths, new_paths, strict=True):
            new.parent.mkdir(exist_ok=True)
            try:
                os.link(old, new)
            except OSError:
                shutil.copyfile(old, new)
    progress.write(path)
    remove_others(path.parent)


def remove_others(folder: Path) -> None:
    """Remove interrupted saves, and checkpoints that a process was removing when it was killed."""
    for path in {*folder.glob("checkpoint-*")} - {*_complete_paths(folder)[-1:]}:
        shutil.rmtree(path)


@contextmanager
def averaged_weights(model: nn.Module, checkpoint: Path, snapshots: Sequence[Snapshot]) -> Iterator[None]:
    """Replace the model's weights by the mean of those of `snapshots`, in `checkpoint`; restore them at the end."""
    state = model.state_dict()
    own = {name: value.clone() for name, value in state.items()}
    with torch.no_grad(), damage_reported(f"{checkpoint}: the snapshots"):
        files = [safe_open(path, framework="pt") for path in _snapshot_paths(checkpoint, snapshots)]
        # Tied weights have two names in the model and one in a file; setting one sets both.
        for name in files[0].keys():  # noqa: SIM118 (no dictionary)
            # In float64, so that the mean of equal weights is exact.
            mean = sum(file.get_tensor(name).double() for file in files) / len(files)
            state[name].copy_(sharded_as(state[name], mean))
    try:
        yield
    finally:
        model.load_state_dict(own)


def _snapshot_paths(checkpoint: Path, snapshots: Iterable[Snapshot]) -> list[Path]:
    """Their weights; those of the checkpoint's own step are its `model.safetensors`."""
    own = _step(checkpoint)
    names = ("model.safetensors" if step == own else f"snapshots/{step}.safetensors" for step, _ in snapshots)
    return [checkpoint / name for name in names]


def _complete_paths(folder: Path) -> list[Path]:
    """The complete checkpoints, ordered by step."""
    paths = (path.parent for path in folder.glob(f"checkpoint-*/{_PROGRESS}"))
    return sorted((path for path in paths if _step(path) >= 0), key=_step)


def _step(path: Path) -> int:
    """The step of a checkpoint; −1 for the name of another folder."""
    number = path.name.removeprefix("checkpoint-")
    return int(number) if number.isdecimal() else -1
