"""Batches of about as many real tokens each, and the way through a split that several processes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

__all__ = ["Share", "token_batches"]

_T = TypeVar("_T")


def token_batches(
    costs: Sequence[int] | np.ndarray, order: Sequence[int] | np.ndarray, budget: int, first: int | None = None
) -> list[list[int]]:
    """Cut `order` into batches of at most `budget` tokens (the first one of at most `first`).

    What is longer than the budget is a batch by itself.
    """
    batches: list[list[int]] = []
    batch: list[int] = []
    total = 0 if first is None else budget - first
    for index in order:
        cost = int(costs[index])
        if batch and total + cost > budget:
            batches.append(batch)
            batch, total = [], 0
        batch.append(int(index))
        total += cost
    return [*batches, batch] if batch else batches


@dataclass(frozen=True)
class Share:
    """What one process does of a pass over a split: every n-th batch; by default all of them.

    Attributes:
        batch_tokens: tokens in a batch.
        rank, world_size: which process, of how many.
        before_batch: called before each batch; what it raises ends the pass.
        gather: given a list, returns the lists of all processes, joined; every process has to call it.
    """

    batch_tokens: int = 4096
    rank: int = 0
    world_size: int = 1
    before_batch: Callable[[], None] = lambda: None
    gather: Callable[[list[Any]], list[Any]] = lambda mine: mine

    def batches(self, costs: np.ndarray, order: np.ndarray) -> Iterator[list[int]]:
        """The batches of this process, out of those that `order` is cut into by `costs`."""
        for batch in token_batches(costs, order, self.batch_tokens)[self.rank :: self.world_size]:
            self.before_batch()
            yield batch

    def merge(self, mine: Mapping[int, _T]) -> list[_T]:
        """The results of all processes in the order of their indices, which are 0 … n − 1 when joined."""
        merged: dict[int, _T] = {}
        for part in self.gather([mine]):
            merged.update(part)
        return [merged[index] for index in range(len(merged))]
