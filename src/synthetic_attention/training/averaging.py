"""Average the weights of the best validations: one model from several points of the same training.

A checkpoint carries the weights of the best validations before it as `snapshots/STEP.safetensors`, hard links where the
disk knows them. So a run that is killed loses none, and one that is resumed averages what it would have averaged.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from .checkpoint import Snapshot, snapshot_paths

__all__ = ["averaged", "best_snapshots", "carry_snapshots"]


def best_snapshots(snapshots: Iterable[Snapshot], count: int, larger_is_better: bool) -> list[Snapshot]:
    """The `count` best, in the order of their steps; of equals the later ones."""
    sign = 1 if larger_is_better else -1
    ranked = sorted(snapshots, key=lambda snapshot: (sign * snapshot[1], snapshot[0]), reverse=True)
    return sorted(ranked[:count])


def carry_snapshots(before: Path, staged: Path, steps: Sequence[int]) -> None:
    """Take the weights of these steps from the checkpoint `before` into the one that will replace it."""
    for path, target in zip(snapshot_paths(before, steps), snapshot_paths(staged, steps), strict=True):
        target.parent.mkdir(exist_ok=True)
        try:
            os.link(path, target)
        except OSError:
            # Not every disk has links.
            shutil.copyfile(path, target)


@contextmanager
def averaged(model: nn.Module, paths: Sequence[Path]) -> Iterator[None]:
    """Inside, the model has the mean of the weights in `paths`; afterwards its own again."""
    state = model.state_dict()
    own = {name: value.clone() for name, value in state.items()}
    _assign(state, _means(paths))
    try:
        yield
    finally:
        _assign(state, own.items())


def _means(paths: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    files = [safe_open(path, framework="pt") for path in paths]
    for name in files[0].keys():  # noqa: SIM118 (no dictionary)
        # In float64, so that the mean of equal weights is these weights.
        total = sum((file.get_tensor(name).double() for file in files), start=torch.zeros((), dtype=torch.float64))
        yield name, total / len(files)


@torch.no_grad()
def _assign(state: dict[str, Tensor], values: Iterable[tuple[str, Tensor]]) -> None:
    # What is tied is there under two names in the model, under one in a file: setting the one sets the other.
    for name, value in values:
        state[name].copy_(value)
