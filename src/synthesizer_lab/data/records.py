"""The records of a split, read when they are needed: large text is never held as a whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, TypeVar

from ..errors import UserError
from .files import fingerprints
from .source import Source

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Split(ABC):
    """A split as text.

    Args:
        skipped: malformed lines.
        first: the number of the first row, in messages.

    Attributes:
        counted: the word for its rows in fingerprints.
        has_labels: whether outputs can be scored against it; some test sets hide their labels.
    """

    name: str
    _: KW_ONLY
    skipped: int = 0
    first: int = 1
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

    def fingerprint(self) -> dict[str, str | int]:
        """Digests that tell whether two runs read the same data."""
        return {"split": self.name, self.counted: len(self), **fingerprints([self.columns()])}


@dataclass(frozen=True)
class Records:
    """The records of a split, read anew in every iteration: texts or tuples of texts; None is a malformed line.

    Args:
        source: where they are.
        read: begins to read.
        make: the split that has some of the records; it takes `first` and `skipped` as well.
        in_parts: whether the split can be used in parts.
    """

    source: Source
    read: Callable[[], Iterator[Any]]
    make: Callable[..., Any]
    in_parts: bool = True

    def split(self, rows: Sequence[Any], first: int = 1) -> Any:
        """The split that has some of the records, of which `first` is the number of the first."""
        kept = [row for row in rows if row is not None]
        return self.make(kept, first=first, skipped=len(rows) - len(kept))

    def load(self) -> Any:
        """The whole split."""
        split = self.split([*self.read()])
        if not any(map(str.strip, split.all_texts())):
            malformed = f" ({split.skipped} malformed)" if split.skipped else ""
            raise UserError(f"{self.source}: there is no text; expected at least one record{malformed}")
        return split

    def windows(self, characters: int) -> Iterator[tuple[int, list[Any]]]:
        """Neighboring records with about so many characters, after the number of records before them."""
        rows: list[Any] = []
        start = size = 0
        for row in self.read():
            rows.append(row)
            size += count_characters(row)
            if size >= characters:
                yield start, rows
                start, rows, size = start + len(rows), [], 0
        if rows:
            yield start, rows


def count_characters(record: Any) -> int:
    """The characters of a text, or of all texts in a tuple or list."""
    if isinstance(record, str):
        return len(record)
    return sum(map(count_characters, record)) if isinstance(record, tuple | list) else 0


def ahead(items: Iterator[_T]) -> Iterator[_T]:
    """The same items; each is computed in another thread while the one before it is used."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item
