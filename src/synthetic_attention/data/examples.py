"""Encoded examples, and the batches made of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import UserError
from .tokenizer import Tokens

__all__ = ["IGNORED", "LONG_CHOICES", "Examples", "Long", "Pair", "Pairs", "fit_length", "pad", "pair_collate"]

# A label that is not scored.
IGNORED = -100
_E = TypeVar("_E")
Pair = tuple[Tokens, Tokens]
Long = Literal["error", "drop", "truncate"]
LONG_CHOICES: tuple[Long, ...] = ("error", "drop", "truncate")


@dataclass(frozen=True)
class Examples(Dataset[_E]):
    """The encoded examples of a split; how many were dropped, or truncated to the maximum length, on the way.

    `skipped` lines of its files were malformed, and never were examples.
    """

    _: KW_ONLY
    dropped: int = 0
    truncated: int = 0
    skipped: int = 0

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def lengths(self) -> np.ndarray:
        """(N, columns): the tokens of each example, as batches and speed count them, in one or more sequences."""

    def draw(self, rng: np.random.Generator, seed: int = 0, number: int = 0) -> np.ndarray:
        """The indices of one pass of training, shuffled by `rng`: each example once, unless a task mixes otherwise.

        Called before each pass, so it is also where a task draws anew what differs from pass to pass.

        Args:
            rng: made of `seed`, which is the run's, and `number`, that of the pass, from 0.
        """
        return rng.permutation(len(self))

    def examples_per_pass(self) -> int:
        """How many examples a pass has."""
        return len(self)

    def tokens_per_pass(self) -> float:
        """How many tokens the examples of a pass have, on average."""
        return float(self.lengths().sum())


@dataclass(frozen=True)
class Pairs(Examples[Pair]):
    """Source and target ids; `rows` are the lines of the split that they come from."""

    sources: list[Tokens]
    targets: list[Tokens]
    rows: list[int]

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Pair:
        return self.sources[index], self.targets[index]

    def lengths(self) -> np.ndarray:
        """(N, 2): source and target tokens of each pair."""
        return np.array([[len(source), len(target)] for source, target in zip(self.sources, self.targets, strict=True)])


def fit_length(
    columns: Mapping[str, list[Tokens]], maximum: int, long: Long, advice: str, first_line: int = 1
) -> tuple[list[int], int]:
    """Deal with the rows of `columns` of which some sequence is longer than `maximum` tokens.

    "truncate" cuts in place and keeps the last token, `</s>`; "drop" leaves rows out of the result.

    Args:
        columns: parallel columns, by the names that messages call them.
        advice: what a user can do about rows that are too long.
        first_line: the number of the line that row 0 comes from.

    Returns:
        The rows to keep, and how many rows were too long.

    Raises:
        UserError: there are such rows and `long` is "error": per column how many, the longest, the first line.
    """
    lengths = np.array([[len(row) for row in column] for column in columns.values()], dtype=np.int64)
    over = lengths > maximum
    count = int(over.any(axis=0).sum())
    if count and long == "error":
        sides = [
            f"{name}: {mine.sum()} of {len(mine)} lines are longer than the maximum of {maximum} tokens (the first is "
            f"line {first_line + mine.argmax()}, the longest has {longest})"
            for name, mine, longest in zip(columns, over, lengths.max(axis=1), strict=True)
            if mine.any()
        ]
        raise UserError(f"{'; '.join(sides)}; {advice}")
    if long == "truncate":
        for column, mine in zip(columns.values(), over, strict=True):
            for row in np.flatnonzero(mine):
                column[row] = np.concatenate([column[row][: maximum - 1], column[row][-1:]])
        return list(range(lengths.shape[1])), count
    return np.flatnonzero(~over.any(axis=0)).tolist(), count


def pad(rows: Sequence[Tokens], value: int) -> Tensor:
    """(B, T) int64: `rows` side by side, filled on the right with `value`."""
    padded = np.full((len(rows), max(len(row) for row in rows)), value, dtype=np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(padded)


def pair_collate(pairs: Sequence[Pair], pad_token_id: int = 0) -> dict[str, Tensor]:
    """input_ids and attention_mask (B, S), labels (B, T) with −100 where there is none."""
    sources, targets = zip(*pairs, strict=True)
    input_ids = pad(sources, pad_token_id)
    lengths = torch.tensor([len(source) for source in sources])
    mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": input_ids, "attention_mask": mask, "labels": pad(targets, IGNORED)}
