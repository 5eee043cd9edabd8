"""The records of a split, read when they are needed: large text is never held as a whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from ..errors import UserError
from .files import fingerprints

_T = TypeVar("_T")
# Compressed text is about this many times as large.
_COMPRESSION = 4


@dataclass(frozen=True, eq=False)
class Split(ABC):
    """A split as text.

    Attributes:
        counted: the word for its rows in fingerprints.
        has_labels: whether outputs can be scored against it; some test sets hide their labels.
    """

    name: str
    counted: ClassVar[str] = "texts"
    has_labels: ClassVar[Any] = True

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def all_texts(self) -> list[str]:
        """All texts, for a tokenizer."""

    @abstractmethod
    def columns(self) -> Mapping[str, Iterable[str]]:
        """By the names of the digests, the lines of which they are."""

    def with_labels(self, labels: frozenset[str] | None) -> Self:
        """The split for training data with these labels; None without training data."""
        return self

    def fingerprint(self) -> dict[str, str | int]:
        """Digests that tell whether two runs read the same data."""
        return {"split": self.name, self.counted: len(self), **fingerprints([self.columns()])}


@dataclass(frozen=True)
class Records:
    """The records of a split, read anew in every iteration: texts or tuples of texts; None is a malformed line.

    Args:
        name: the name of the split.
        read: begins to read.
        make: the split that has some of the records; its argument `first` is the number of the first of them.
        files: the files that are read; () for a data set on the hub.
        size: the number of bytes, if it has no files.
        labels: the labels of the training data, as far as these records were read; None without training data.
        in_parts: whether the split can be used in parts.
    """

    name: str
    read: Callable[[], Iterator[Any]]
    make: Callable[..., Any]
    files: tuple[Path, ...] = ()
    size: Callable[[], int] = lambda: 0
    labels: Callable[[], frozenset[str] | None] = frozenset
    in_parts: bool = True

    def load(self, labels: frozenset[str] | None = None) -> Any:
        """The whole split; `labels` are those of the training data, if they are known."""
        split = self.make([*self.read()])
        if not len(split):
            raise UserError(f"{self.name}: no text is left")
        return split.with_labels(self.labels() if labels is None else labels)

    def bytes(self) -> int:
        """The approximate size of the text."""
        if not self.files:
            return self.size()
        return sum(path.stat().st_size * (_COMPRESSION if path.suffix == ".gz" else 1) for path in self.files)

    def windows(self, characters: int, start: int = 0) -> Iterator[tuple[int, list[Any]]]:
        """Neighboring records with about so many characters, after the number of records before them."""
        rows: list[Any] = []
        size = 0
        for row in islice(self.read(), start, None):
            rows.append(row)
            size += count_characters(row)
            if size >= characters:
                yield start, rows
                start, rows, size = start + len(rows), [], 0
        if rows:
            yield start, rows


def count_characters(record: Any) -> int:
    """The characters of a text, or of all texts in a tuple."""
    if isinstance(record, str):
        return len(record)
    return sum(map(count_characters, record)) if isinstance(record, tuple) else 0


def ahead(items: Iterator[_T], count: int = 1) -> Iterator[_T]:
    """The same items; up to `count` of them are computed in another thread before they are used."""
    thread = ThreadPoolExecutor(1)
    try:
        waiting = deque(thread.submit(next, items, None) for _ in range(count))
        while (item := waiting.popleft().result()) is not None:
            waiting.append(thread.submit(next, items, None))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)
