"""Checkpoints: Trainer's files, our progress, and the weights of the best validations, which may be averaged.

`progress.json` is written last. A folder without it is an interrupted save; it is never resumed from. The previous
checkpoint is removed after that. Weights of earlier validations lie in `snapshots/STEP.safetensors`, as hard links
where the file system has them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..errors import damage_reported
from .sharding import sharded_as

# Trainer would resume without some of them, from another state.
_FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state*.pth")
_PROGRESS = "progress.json"

# The step of a validation whose weights are kept, and its score.
Snapshot = tuple[int, float]


@dataclass
class Progress:
    """The state of a run that Trainer's checkpoint lacks; `best` and `last` are the scores of these validations.

    `step` is that of the checkpoint, 0 without one; `tokens` and `batches` are those of all processes.
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    batches: int = 0
    best: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)


def last_progress(folder: Path) -> Progress:
    """That of the checkpoint of the highest step; raises UserError if files of it are missing or damaged."""
    if not (paths := _complete_paths(folder)):
        return Progress()
    path = paths[-1]
    with damage_reported(f"{path}: the checkpoint"):
        values = json.loads((path / _PROGRESS).read_text(encoding="utf-8"))
        # Of older versions.
        values.pop("place", None)
        values["step"] = _step(path)
        # JSON has no tuples.
        values["snapshots"] = [(int(step), float(score)) for step, score in values.get("snapshots", ())]
        progress = Progress(**values)
        if missing := [name for name in _FILES if not [*path.glob(name)]]:
            raise ValueError(f"{', '.join(missing)} missing")
    return progress


def commit_checkpoint(path: Path, progress: Progress) -> None:
    """Complete a checkpoint that Trainer has written; then remove the others."""
    before = [other for other in _complete_paths(path.parent) if other != path]
    for step, _ in progress.snapshots if before else ():
        old, new = _weights(before[-1], step), _weights(path, step)
        new.parent.mkdir(exist_ok=True)
        if not new.exists():
            try:
                os.link(old, new)
            except OSError:
                shutil.copyfile(old, new)
    partial = path / f"{_PROGRESS}.partial"
    partial.write_text(json.dumps(asdict(progress), allow_nan=False), encoding="utf-8")
    partial.replace(path / _PROGRESS)
    remove_others(path.parent)


def remove_others(folder: Path) -> None:
    """Remove interrupted saves, and checkpoints that a process was removing when it was killed."""
    for path in {*_paths(folder)} - {*_complete_paths(folder)[-1:]}:
        shutil.rmtree(path)


@contextmanager
def averaged_weights(model: nn.Module, now: int, checkpoints: Path, steps: Sequence[int]) -> Iterator[None]:
    """Replace the weights of a model at step `now` by the mean of those at `steps`; restore them at the end."""
    state = model.state_dict()
    own = {name: value.clone() for name, value in state.items()}
    last = _complete_paths(checkpoints)[-1]
    with torch.no_grad(), damage_reported(f"{last}: the snapshots"):
        files = [safe_open(_weights(last, step), framework="pt") for step in steps if step != now]
        # Tied weights have two names in the model and one in a file; setting one sets both.
        for name in files[0].keys():  # noqa: SIM118 (no dictionary)
            tensors = [sharded_as(own[name], file.get_tensor(name).to(own[name].device)) for file in files]
            tensors += [own[name]] if now in steps else []
            # In float64, so that the mean of equal weights is exact.
            state[name].copy_(cast(Tensor, sum(each.double() for each in tensors)) / len(tensors))
    try:
        yield
    finally:
        model.load_state_dict(own)


def _weights(checkpoint: Path, step: int) -> Path:
    """The weights of a validation; those of the checkpoint's own step are its `model.safetensors`."""
    return checkpoint / ("model.safetensors" if step == _step(checkpoint) else f"snapshots/{step}.safetensors")


def _complete_paths(folder: Path) -> list[Path]:
    """The complete checkpoints, ordered by step."""
    return sorted((path for path in _paths(folder) if (path / _PROGRESS).exists()), key=_step)


def _paths(folder: Path) -> list[Path]:
    """The checkpoints, without copies that users made, such as checkpoint-100.bak2."""
    return [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]


def _step(path: Path) -> int:
    return int(path.name.removeprefix("checkpoint-"))
