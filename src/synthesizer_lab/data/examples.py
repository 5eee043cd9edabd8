"""Encoded examples, and what becomes of them in a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from ..errors import UserError
from .tokenizer import Tokens

# The label of a token that has no loss, as in PyTorch.
IGNORED = -100
# How to handle texts that are too long: in an evaluation, and in training.
OnLongInput = Literal["error", "truncate"]
OnLong = Literal["error", "truncate", "drop"]


class NoExamplesError(UserError):
    """All examples of a split are blank, or too long and dropped."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Examples(Dataset[Any]):
    """The encoded examples of a split: tuples of one or several sequences of ids, and what else a task needs.

    Subclasses cut their examples from running text: then these are the texts.

    Args:
        tokens: all sequences, one after the other.
        sizes: (N, sequences) the number of tokens in each.
        numbers: (N, …) the other values.
        rows: the rows of the split that the examples are.
        dropped, truncated, skipped: examples that were too long or blank, too long, and malformed lines.
        note: for users.
    """

    tokens: np.ndarray
    sizes: np.ndarray
    numbers: np.ndarray
    rows: Sequence[int] = ()
    dropped: int = 0
    truncated: int = 0
    skipped: int = 0
    note: str = ""

    @classmethod
    def of(cls, items: Sequence[tuple[Any, ...]], **fields: Any) -> Self:
        """Examples from a list of tuples."""
        parts = [part for item in items for part in item if isinstance(part, np.ndarray)]
        numbers = [part for item in items for part in item if not isinstance(part, np.ndarray)]
        return cls(
            tokens=np.concatenate(parts, dtype=np.int32) if parts else np.zeros(0, dtype=np.int32),
            sizes=np.array([len(part) for part in parts], dtype=np.int64).reshape(len(items), -1 if items else 1),
            numbers=np.array(numbers, dtype=np.float64).reshape(len(items), -1 if items else 0),
            **fields,
        )

    @cached_property
    def ends(self) -> np.ndarray:
        """(N, sequences) the end of each sequence among the tokens."""
        return np.cumsum(self.sizes).reshape(self.sizes.shape)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Example `index % N`; `index // N` is the pass over the data; only noise depends on it."""
        index %= len(self)
        sides = zip(self.ends[index], self.sizes[index], strict=True)
        return (*(self.tokens[end - size : end] for end, size in sides), *self.numbers[index].tolist())

    def items(self) -> Iterator[tuple[Any, ...]]:
        """All examples."""
        return map(self.__getitem__, range(len(self)))

    def lengths(self) -> np.ndarray:
        """(N, sequences) the number of tokens of each example in the model."""
        return self.sizes

    def draw(self, rng: np.random.Generator, seed: int = 0, number: int = 0) -> np.ndarray:
        """The shuffled indices of epoch `number`; `rng` is seeded with both. Subclasses may draw new noise here."""
        return rng.permutation(len(self))

    def tokens_per_pass(self) -> float:
        """The mean number of tokens in an epoch."""
        return float(self.lengths().sum())


def find_long(
    columns: Mapping[str, Sequence[int]], maximum: int, on_long: OnLong, first: int = 1, unit: str = "lines"
) -> np.ndarray:
    """(N,) bool: rows with a length over `maximum` in some column; on "error" they raise UserError."""
    lengths = np.array([*columns.values()], dtype=np.int64)
    over = lengths > maximum
    if on_long == "error" and over.any():
        sides = [
            f"{name}: {mine.sum()} of {len(mine)} {unit} are longer than the maximum of {maximum} tokens (the first is "
            f"{unit[:-1]} {first + mine.argmax()}, the longest has {longest})"
            for name, mine, longest in zip(columns, over, lengths.max(axis=1), strict=True)
            if mine.any()
        ]
        raise UserError(f"{'; '.join(sides)}; pass --on-long truncate, or in training --on-long drop")
    return np.asarray(over.any(axis=0))


def truncated(ids: Tokens, maximum: int) -> Tokens:
    """The first tokens and the last one, which is `</s>`."""
    return ids if len(ids) <= maximum else np.append(ids[: maximum - 1], ids[-1:])


def pad(rows: Sequence[Tokens], value: int) -> Tensor:
    """(B, T) int64, filled on the right with `value`."""
    return pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True, padding_value=value).long()


def padded_inputs(rows: Sequence[Tokens], pad_token_id: int) -> dict[str, Tensor]:
    """input_ids and attention_mask (B, T)."""
    input_ids = pad(rows, pad_token_id)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": input_ids, "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()}


def token_batches(costs: Sequence[int] | np.ndarray, order: Sequence[int] | np.ndarray, budget: int) -> list[list[int]]:
    """Cut `order` into batches of at most `budget` tokens. An example longer than that is a batch by itself."""
    order = np.asarray(order, dtype=np.int64)
    parts = np.split(order, cuts(np.asarray(costs)[order], budget, budget))
    return [part.tolist() for part in parts if len(part)]


def cuts(costs: np.ndarray, budget: int, first: int) -> list[int]:
    """Where batches of at most `budget` tokens begin, but the first one, which has at most `first`."""
    ends = np.cumsum(costs)
    found, start, limit = list[int](), 0, first
    while (start := max(start + 1, int(np.searchsorted(ends, limit, side="right")))) < len(costs):
        found.append(start)
        limit = ends[start - 1] + budget
    return found


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
