"""Batches of examples by their number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
from torch.utils.data import Sampler

from .examples import Examples, cuts


class TokenBatchSampler(Sampler[list[int]]):
    """Batches of examples with at most `budget` tokens: `num_batches` of an endless stream, from batch `start`.

    In pass p over N examples, index p·N + i is example i: a batch that is fetched late has the noise of its own pass.

    The stream depends on the arguments only. Each pass over the data shuffles, sorts by length (by the first column
    first; equal lengths stay shuffled), cuts batches and shuffles them. The first cut is at a random place, so passes
    differ even if no two lengths are equal. It is one stream, without epochs, for all processes together, so a run can
    resume at any batch with any number of processes. The tokens of all columns of `examples.lengths()` count, such as
    source and target.
    """

    def __init__(self, examples: Examples, budget: int, seed: int, num_batches: int, start: int = 0) -> None:
        self.examples, self.budget, self.seed, self.num_batches, self.start = examples, budget, seed, num_batches, start

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        size = len(self.examples)
        passes = ((number * size, batch) for number in count() for batch in self.batches(number))
        taken = islice(passes, self.start, self.start + self.num_batches)
        return ((first + batch).tolist() for first, batch in taken)

    def batches(self, epoch: int) -> Iterator[np.ndarray]:
        """The batches of one pass, of indices below N."""
        # Older versions had a third number here, with which runs resume exactly.
        rng = np.random.default_rng([self.seed, epoch, 0])
        shuffled, lengths = self.examples.draw(rng, self.seed, epoch), self.examples.lengths()
        # The last key of lexsort is the first to sort by.
        order = shuffled[np.lexsort(lengths[shuffled].T[::-1])]
        first = int(rng.integers(1, self.budget + 1))
        batches = np.split(order, cuts(lengths.sum(axis=1)[order], self.budget, first))
        return (batches[index] for index in rng.permutation(len(batches)))
