"""Encoded examples, their batches, and the batches of one process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from synthetic_attention.models.loss import IGNORED as IGNORED

from ..errors import UserError
from .tokenizer import Tokens, encodings

_E = TypeVar("_E")
_T = TypeVar("_T", bound=tuple[Any, ...])
Pair = tuple[Tokens, Tokens]
# The ids of a sequence, the number of ids of its first text, and the label.
TextExample = tuple[Tokens, int, float]
# How to handle texts that are too long: in an evaluation, and in training.
OnLongInput = Literal["error", "truncate"]
OnLong = Literal["error", "truncate", "drop"]


class NoExamplesError(UserError):
    """All examples of a split are blank, or too long and dropped."""


@dataclass(frozen=True)
class TrainingData(Dataset[_E]):
    """Encoded examples in windows, the numbers of those too long and of malformed lines, and a note for users."""

    _: KW_ONLY
    dropped: int = 0
    truncated: int = 0
    skipped: int = 0
    note: str = ""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def tokens_per_pass(self) -> float | None:
        """The mean number of tokens in an epoch; None if it is not known."""

    @abstractmethod
    def windows(self, seed: int, epoch: int, position: int = 0) -> Iterator[tuple[int, Examples[_E]]]:
        """The parts that an epoch shuffles, one after the other, each after its position."""


@dataclass(frozen=True)
class Examples(TrainingData[_E]):
    """The encoded examples of a split, which are one window."""

    @abstractmethod
    def lengths(self) -> np.ndarray:
        """(N, columns) the number of tokens of each example, in one or more sequences."""

    def draw(self, rng: np.random.Generator, seed: int = 0, number: int = 0) -> np.ndarray:
        """The shuffled indices of epoch `number`; `rng` is seeded with both. Subclasses may draw new noise here."""
        return rng.permutation(len(self))

    def tokens_per_pass(self) -> float:
        """The number of tokens."""
        return float(self.lengths().sum())

    def windows(self, seed: int, epoch: int, position: int = 0) -> Iterator[tuple[int, Examples[_E]]]:
        """All examples."""
        yield position, self


@dataclass(frozen=True)
class TextExamples(Examples[_T]):
    """Examples in a list: tuples of one or two sequences of ids, and what else a task needs."""

    items: list[_T]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> _T:
        return self.items[index]

    def lengths(self) -> np.ndarray:
        """(N, sequences) the tokens of each sequence."""
        return np.array([[len(part) for part in item if isinstance(part, np.ndarray)] for item in self.items])


@dataclass(frozen=True, eq=False)
class RunningText:
    """The tokens of texts, one text after the other; text i is tokens[offsets[i] : offsets[i + 1]]."""

    tokens: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def ids(self, start: int, size: int) -> Tokens:
        """A copy of up to `size` tokens from position `start`."""
        return self.tokens[start : start + size].copy()

    @classmethod
    def of(cls, texts: TextExamples[tuple[Tokens]]) -> RunningText:
        """The tokens of examples with one sequence each."""
        rows = [ids for (ids,) in texts.items]
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32), offsets)


@dataclass(frozen=True)
class Pairs(TextExamples[Pair]):
    """Source and target ids; `rows` are the line indices in the split."""

    rows: list[int]


def fit_length(
    columns: Mapping[str, list[Tokens]], maximum: int, on_long: OnLong, advice: str, first_line: int = 1
) -> tuple[list[int], int]:
    """Handle rows with a sequence of more than `maximum` tokens: raise UserError with `advice`, truncate, or drop.

    A truncated sequence keeps its first tokens and the last one, which is `</s>`. Returns the rows that stay, and the
    number of rows that were too long.
    """
    lengths = np.array([[*map(len, column)] for column in columns.values()], dtype=np.int64)
    over = lengths > maximum
    rows = over.any(axis=0)
    if on_long == "truncate":
        for column, mine in zip(columns.values(), over, strict=True):
            for row in np.flatnonzero(mine):
                column[row] = np.append(column[row][: maximum - 1], column[row][-1:])
    elif on_long == "error" and rows.any():
        sides = [
            f"{name}: {mine.sum()} of {len(mine)} lines are longer than the maximum of {maximum} tokens (the first is "
            f"line {first_line + mine.argmax()}, the longest has {longest})"
            for name, mine, longest in zip(columns, over, lengths.max(axis=1), strict=True)
            if mine.any()
        ]
        raise UserError(f"{'; '.join(sides)}; {advice}")
    return np.flatnonzero(~rows | (on_long == "truncate")).tolist(), int(rows.sum())


def join_sides(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[tuple[str, ...]], maximum: int | None = None
) -> tuple[list[Tokens], list[int], int]:
    """Encode texts as `<s> text </s>`, pairs as `<s> text </s> text </s>`; `maximum` truncates the longer text first.

    Returns the ids, the number of ids of each first text, and the number of truncated examples.
    """
    inputs = [(sides[0], sides[1]) if len(sides) == 2 else sides[0] for sides in texts]
    sequences, firsts, count = [], [], 0
    for encoding in encodings(tokenizer, inputs, maximum):
        sequences.append(np.array(encoding.ids, dtype=np.int32))
        firsts.append(encoding.type_ids.count(0))
        count += bool(encoding.overflowing)
    return sequences, firsts, count


def pad(rows: Sequence[Tokens], value: int) -> Tensor:
    """(B, T) int64, filled on the right with `value`."""
    return pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True, padding_value=value).long()


def padded_inputs(rows: Sequence[Tokens], pad_token_id: int) -> dict[str, Tensor]:
    """input_ids and attention_mask (B, T)."""
    input_ids = pad(rows, pad_token_id)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": input_ids, "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()}


def pair_collate(pairs: Sequence[Pair], pad_token_id: int = 0) -> dict[str, Tensor]:
    """input_ids and attention_mask (B, S), labels (B, T) padded with −100."""
    sources, targets = zip(*pairs, strict=True)
    return {**padded_inputs(sources, pad_token_id), "labels": pad(targets, IGNORED)}


def text_collate(examples: Sequence[TextExample], pad_token_id: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """input_ids and attention_mask (B, L), labels (B,) of `dtype`; for pairs token_type_ids (B, L), 1 on the second."""
    sequences, firsts, labels = zip(*examples, strict=True)
    batch = padded_inputs(sequences, pad_token_id)
    if any(first < len(row) for row, first in zip(sequences, firsts, strict=True)):
        is_second = torch.arange(batch["input_ids"].shape[1]) >= torch.tensor(firsts)[:, None]
        batch["token_type_ids"] = is_second * batch["attention_mask"]
    return {**batch, "labels": torch.tensor(labels, dtype=dtype)}


def token_batches(
    costs: Sequence[int] | np.ndarray, order: Sequence[int] | np.ndarray, budget: int, first: int | None = None
) -> list[list[int]]:
    """Cut `order` into batches of at most `budget` tokens, the first batch of at most `first`.

    An example longer than the budget is a batch by itself.
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
