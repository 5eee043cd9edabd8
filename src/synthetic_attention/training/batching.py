"""The stream of training batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from torch.utils.data import Sampler

from ..data.batching import token_batches

__all__ = ["TokenBatchSampler"]


class TokenBatchSampler(Sampler[list[int]]):
    """An endless shuffle of batches, cut after `num_batches`: a function of its arguments alone.

    Each pass over the data shuffles, sorts by length (the first column first; ties stay shuffled), cuts into batches by
    the budget of tokens, and shuffles the batches. The first cut is at a random place, so that even where no two
    lengths are equal each pass has other batches. One stream instead of epochs: resuming is skipping, and needs
    nothing to be told which epoch it is.

    Args:
        lengths: (N, columns), tokens of each example: source and target, or just one column.
        budget: tokens in a batch, those of all columns.
        seed: of the shuffles.
        num_batches: length of the stream.
        draw: the examples of one pass, from a generator, the seed and the number of the pass (`Examples.draw`); by
            default each once.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        budget: int,
        seed: int,
        num_batches: int,
        draw: Callable[[np.random.Generator, int, int], np.ndarray] | None = None,
    ) -> None:
        self.lengths = lengths
        self.budget = budget
        self.seed = seed
        self.num_batches = num_batches
        self._draw = draw or (lambda rng, seed, number: rng.permutation(len(lengths)))

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        left, epoch = self.num_batches, 0
        while left > 0:
            batches = self.epoch(epoch)
            yield from batches[:left]
            left, epoch = left - len(batches), epoch + 1

    def epoch(self, epoch: int) -> list[list[int]]:
        """The batches of one pass, counted from 0."""
        rng = np.random.default_rng([self.seed, epoch])
        shuffled = self._draw(rng, self.seed, epoch)
        # The last key of lexsort is the first to sort by.
        order = shuffled[np.lexsort(self.lengths[shuffled].T[::-1])]
        first = int(rng.integers(1, self.budget + 1))
        batches = token_batches(self.lengths.sum(axis=1), order, self.budget, first)
        return [batches[index] for index in rng.permutation(len(batches))]
