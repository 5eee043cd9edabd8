"""Batches of about as many real tokens each, of sentences about as long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

__all__ = ["TokenBatchSampler", "token_batches"]


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


class TokenBatchSampler(Sampler[list[int]]):
    """An endless shuffle of batches, cut after `num_batches`: a function of its arguments alone.

    Each pass over the data shuffles, sorts by source then target length (ties stay shuffled), cuts into batches by
    the budget of source + target tokens, and shuffles the batches. The first cut is at a random place, so that even
    where no two lengths are equal each pass has other batches. One stream instead of epochs: resuming is
    skipping, and needs nothing to be told which epoch it is.

    Args:
        lengths: (N, 2), source and target tokens of each pair.
        budget: tokens in a batch.
        seed: of the shuffles.
        num_batches: length of the stream.
    """

    def __init__(self, lengths: np.ndarray, budget: int, seed: int, num_batches: int) -> None:
        self.lengths = lengths
        self.budget = budget
        self.seed = seed
        self.num_batches = num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        left, epoch = self.num_batches, 0
        while left > 0:
            batches = self._epoch(epoch)
            yield from batches[:left]
            left, epoch = left - len(batches), epoch + 1

    def _epoch(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng([self.seed, epoch])
        shuffled = rng.permutation(len(self.lengths))
        sources, targets = self.lengths[shuffled].T
        order = shuffled[np.lexsort((targets, sources))]
        first = int(rng.integers(1, self.budget + 1))
        batches = token_batches(self.lengths.sum(axis=1), order, self.budget, first)
        return [batches[index] for index in rng.permutation(len(batches))]
