"""The records of a split, read when they are needed, and windows of them: large text is never held as a whole."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

Record = TypeVar("Record")
_T = TypeVar("_T")
# Compressed text is about this many times as large.
_COMPRESSION = 4


@dataclass(frozen=True)
class Records(Generic[Record]):
    """The records of a split, read anew in every iteration: texts or tuples of texts; None is a malformed line.

    Args:
        name: the name of the split.
        read: begins to read.
        files: the files that are read; () for a data set on the hub.
        size: the number of bytes, if it has no files.
        labels: the labels of the whole split, where its parts have to know them.
    """

    name: str
    read: Callable[[], Iterator[Record | None]]
    files: tuple[Path, ...] = ()
    size: Callable[[], int] = lambda: 0
    labels: frozenset[str] = frozenset()

    def bytes(self) -> int:
        """The approximate size of the text."""
        if not self.files:
            return self.size()
        return sum(path.stat().st_size * (_COMPRESSION if path.suffix == ".gz" else 1) for path in self.files)

    def windows(self, characters: int, start: int = 0) -> Iterator[tuple[int, list[Record | None]]]:
        """Neighboring records with about so many characters, after the number of records before them."""
        rows: list[Record | None] = []
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


def digest_of(paths: Iterable[Path], size: int | None = None) -> str:
    """SHA-256 of the contents of files, or of the first `size` bytes of each."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            if size is None:
                digest.update(hashlib.file_digest(file, "sha256").digest())
            else:
                digest.update(hashlib.sha256(file.read(size)).digest())
    return digest.hexdigest()


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
