"""Tokens in a memory-mapped Arrow table in the cache of `datasets` (HF_DATASETS_CACHE), written once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .examples import TextExamples
from .hub import import_datasets

_COUNTS = ("dropped", "truncated", "skipped")


@dataclass(frozen=True, eq=False)
class TokenTable:
    """Tokenized examples in blocks of neighbors, which are read when they are needed.

    Args:
        columns: by name one array per block: the tokens, the lengths of the sequences, the other numbers of examples.
        counts: (blocks, 4) examples, and those dropped, truncated, skipped.
    """

    columns: dict[str, list[np.ndarray]]
    counts: np.ndarray

    def __len__(self) -> int:
        return len(self.counts)

    def tokens(self) -> np.ndarray:
        """(blocks,) the number of tokens."""
        return np.array([len(block) for block in self.columns["tokens"]], dtype=np.int64)

    def load(self, blocks: np.ndarray) -> TextExamples[Any]:
        """The examples of some blocks, in memory."""
        items = [item for block in blocks for item in self._block(int(block))]
        totals = self.counts[blocks].sum(axis=0)[1:].tolist()
        return TextExamples(items, **dict(zip(_COUNTS, totals, strict=True)))

    def _block(self, block: int) -> Iterator[tuple[Any, ...]]:
        tokens, lengths, numbers = (self.columns[name][block] for name in ("tokens", "lengths", "numbers"))
        count = self.counts[block, 0]
        if not count:
            return
        parts = iter(np.split(tokens.astype(np.int32), np.cumsum(lengths)[:-1]))
        sides = len(lengths) // count
        for row in numbers.reshape(count, -1).tolist():
            yield (*(next(parts) for _ in range(sides)), *row)

    @classmethod
    def cached(cls, key: Any, blocks: Callable[[], Iterator[TextExamples[Any]]], vocabulary: int) -> TokenTable:
        """The table that the cache has for `key`, a value of JSON; else it is written from `blocks`.

        Other processes that ask for it wait meanwhile.
        """
        datasets = import_datasets("large text")
        name = f"tokens-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}"
        dtype = np.uint16 if vocabulary <= 2**16 else np.uint32

        def rows() -> Iterator[dict[str, np.ndarray]]:
            for examples in blocks():
                yield _row(examples, dtype)

        try:
            # A record batch for each row: they are found without a search.
            table = datasets.Dataset.from_generator(rows, fingerprint=name, writer_batch_size=1).data
            columns = {
                column: [chunk.flatten().to_numpy() for chunk in table.column(column).chunks]
                for column in ("tokens", "lengths", "numbers", "counts")
            }
        # Errors of `blocks` and of writing have a cause; a damaged table has many errors.
        except Exception as error:
            if isinstance(error.__cause__, UserError):
                raise error.__cause__ from None
            raise UserError(
                f"{datasets.config.HF_DATASETS_CACHE}: cannot read or write {name} ({error.__cause__ or error}); "
                "delete it to write it again, or set HF_DATASETS_CACHE to a folder with enough space"
            ) from error
        counts = np.stack(columns.pop("counts"))
        return cls(columns, counts)


def cache_folder() -> Path:
    """The folder of the tables."""
    return Path(import_datasets("large text").config.HF_DATASETS_CACHE)


def _row(examples: TextExamples[Any], dtype: type[np.unsignedinteger[Any]]) -> dict[str, np.ndarray]:
    """The arrays of a block."""
    parts = [part for item in examples.items for part in item if isinstance(part, np.ndarray)]
    numbers = [part for item in examples.items for part in item if not isinstance(part, np.ndarray)]
    counts = [len(examples), *(getattr(examples, name) for name in _COUNTS)]
    return {
        "tokens": np.concatenate(parts or [np.zeros(0)]).astype(dtype),
        "lengths": np.array([len(part) for part in parts], dtype=np.int32),
        "numbers": np.array(numbers, dtype=np.float64),
        "counts": np.array(counts, dtype=np.int64),
    }
