"""Batches of examples by their number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset, Sampler

from ..errors import UserError
from .examples import Examples, TrainingData, token_batches

# An example in a window.
Key = tuple[Examples, int]


class Place(NamedTuple):
    """The beginning of a window: its epoch, its position there, and the number of batches before it in all."""

    epoch: int = 0
    position: int = 0
    batches: int = 0


class Items(Dataset[Any]):
    """The examples that keys stand for."""

    def __getitem__(self, key: Key) -> Any:
        examples, index = key
        return examples[index]


class TokenBatchSampler(Sampler[list[Key]]):
    """Batches of examples with at most `budget` tokens: `num_batches` of an endless stream, from batch `start`.

    The stream depends on the arguments only. Each pass over the data shuffles, sorts by length (by the first column
    first; equal lengths stay shuffled), cuts batches and shuffles them. The first cut is at a random place, so passes
    differ even if no two lengths are equal. It is one stream, without epochs, for all processes together, so a run can
    resume at any batch with any number of processes. The tokens of all columns of `examples.lengths()` count, such as
    source and target. Data that is larger than a window is shuffled and sorted window by window; `place` is the window
    to begin at, which has batch `start` or comes before it.
    """

    def __init__(
        self,
        examples: TrainingData,
        budget: int,
        seed: int,
        num_batches: int,
        start: int = 0,
        place: Place | None = None,
    ) -> None:
        self.examples, self.budget, self.seed, self.num_batches, self.start = examples, budget, seed, num_batches, start
        self._places = [place or Place()]

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[Key]]:
        return islice(self._stream(), self.num_batches)

    def _stream(self) -> Iterator[list[Key]]:
        epoch, position, before = self._places[0]
        while True:
            begin = before
            for place, window in self.examples.windows(self.seed, epoch, position):
                self._places.append(Place(epoch, place, before))
                batches = self.batches(window, epoch, place)
                for batch in batches[max(0, self.start - before) :]:
                    yield [(window, index) for index in batch]
                before += len(batches)
            if before == begin and position == 0:
                raise UserError("no example is left of the training data")
            epoch, position = epoch + 1, 0

    def place(self, batches: int) -> Place:
        """The window that has the batch after so many batches."""
        while len(self._places) > 1 and self._places[1].batches <= batches:
            del self._places[0]
        return self._places[0]

    def batches(self, window: Examples, epoch: int, position: int = 0) -> list[list[int]]:
        """The batches of a window, or of one pass over examples in memory."""
        rng = np.random.default_rng([self.seed, epoch, position])
        shuffled, lengths = window.draw(rng, self.seed, epoch), window.lengths()
        # The last key of lexsort is the first to sort by.
        order = shuffled[np.lexsort(lengths[shuffled].T[::-1])]
        first = int(rng.integers(1, self.budget + 1))
        batches = token_batches(lengths.sum(axis=1), order, self.budget, first)
        return [batches[index] for index in rng.permutation(len(batches))]
