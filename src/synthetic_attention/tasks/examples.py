"""Encoded pairs, and the batches made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .errors import UserError
from .tokenizer import Tokens

__all__ = ["LONG_CHOICES", "Examples", "Long", "fit_length", "pad", "pair_collate"]

IGNORED = -100
Pair = tuple[Tokens, Tokens]
Long = Literal["error", "drop", "truncate"]
LONG_CHOICES: tuple[Long, ...] = ("error", "drop", "truncate")


@dataclass(frozen=True)
class Examples(Dataset[Pair]):
    """Source and target ids of a split; how many of its pairs were dropped, or truncated to the maximum length.

    `rows` are the lines of the split that they come from.
    """

    sources: list[Tokens]
    targets: list[Tokens]
    rows: list[int]
    dropped: int = 0
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Pair:
        return self.sources[index], self.targets[index]

    def lengths(self) -> np.ndarray:
        """(N, 2): source and target tokens of each pair."""
        return np.array([[len(source), len(target)] for source, target in zip(self.sources, self.targets, strict=True)])


def fit_length(columns: Sequence[list[Tokens]], maximum: int, long: Long, where: str) -> tuple[list[int], int]:
    """Deal with the rows of `columns` of which some sequence is longer than `maximum` tokens.

    "truncate" cuts in place and keeps the last token, `</s>`; "drop" leaves rows out of the result.

    Returns:
        The rows to keep, and how many rows were too long.

    Raises:
        UserError: there are such rows and `long` is "error": how many, the longest, the first line.
    """
    longest = np.array([max(len(column[row]) for column in columns) for row in range(len(columns[0]))])
    over = np.flatnonzero(longest > maximum)
    if len(over) and long == "error":
        raise UserError(
            f"{where}: {len(over)} of {len(longest)} lines are longer than the maximum of {maximum} tokens (the first "
            f"is line {over[0] + 1}, the longest has {longest.max()}); pass --truncate to cut them"
        )
    if long == "truncate":
        for column in columns:
            for row in over:
                column[row] = np.concatenate([column[row][: maximum - 1], column[row][-1:]])[:maximum]
        return list(range(len(longest))), len(over)
    return np.flatnonzero(longest <= maximum).tolist(), len(over)


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
