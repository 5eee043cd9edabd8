"""Where the rows of a split are: local files, or a data set on the Hugging Face hub.

`datasets`, which reads the hub, is imported only when data is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, require
from .files import parse_lines, read_rows, split_files

# Makes records of a row and its number.
Parse = Callable[[int, Any], Iterable[Any]]
_PREFIX = "hub:"
# Compressed text is about this many times as large.
_COMPRESSION = 4


class NoSplitError(UserError):
    """A data set has no split of that name."""


def is_hub_name(data: Path) -> bool:
    """Whether `data` is the name of a data set on the hub, hub:OWNER/NAME, and not a path."""
    return str(data).startswith(_PREFIX)


def import_datasets(purpose: str) -> Any:
    """The library `datasets`, without its progress bars and log lines."""
    datasets = require("datasets", "train", purpose)
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    return datasets


@dataclass(frozen=True)
class Source:
    """Local files, or a split of a data set on the hub.

    Args:
        split: the split, as users named it, or as the file is called.
        files: local files; () on the hub.
        hub: OWNER/NAME of a data set.
        subset, revision: its configuration, and a branch, tag or commit.
    """

    split: str
    files: tuple[Path, ...] = ()
    hub: str = ""
    subset: str | None = None
    revision: str | None = None

    @classmethod
    def of(
        cls,
        data: Path,
        split: str,
        endings: Sequence[str] = (),
        subset: str | None = None,
        revision: str | None = None,
        several: bool = False,
    ) -> Source:
        """The split of the hub data set that `data` names, or its file in a folder; `several` files are possible."""
        if not is_hub_name(data):
            files = split_files(data, split, endings, several)
            return cls(files[0].name.split(".")[0] if len(files) == 1 else split, tuple(files))
        name = str(data).removeprefix(_PREFIX)
        # Without an owner, `datasets` would read local files by the names of their formats.
        if not all(name.split("/")) or name.count("/") != 1:
            raise UserError(f"got {str(data)!r}; expected hub:OWNER/NAME")
        return cls(split, (), name, subset, revision)

    def __str__(self) -> str:
        if self.hub:
            subset = f" ({self.subset})" if self.subset else ""
            return f"{_PREFIX}{self.hub}{subset}, split {self.split!r}"
        return " and ".join(map(str, self.files)) or self.split

    def parse(
        self, parse: Parse, skip_bad_lines: bool | None = None, columns: Sequence[str] = (), has_header: bool = True
    ) -> Iterator[Any]:
        """Parse the numbered rows: objects with named fields, on the hub at least `columns`; else lines.

        A malformed row is an error, or None with `skip_bad_lines`. Without header the columns of a table have numbers.
        """
        if self.hub:
            yield from parse_lines(str(self), enumerate(self.rows(columns), start=1), parse, skip_bad_lines, "row")
        for path in self.files:
            rows, decode = read_rows(path, has_header)
            yield from parse_lines(path, rows, parse, skip_bad_lines, decode=decode)

    def rows(self, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """The rows on the hub. A missing split raises NoSplitError."""
        with self._opened() as table:
            known = table.column_names
            if missing := [column for column in columns if column not in known]:
                raise UserError(f"{self}: no column {', '.join(missing)}; its columns are: {', '.join(known)}")
            yield from table

    def bytes(self) -> int:
        """The approximate size of the text; a split on the hub is downloaded."""
        if self.hub:
            with self._opened() as table:
                return int(table.data.nbytes)
        return sum(path.stat().st_size * (_COMPRESSION if path.suffix == ".gz" else 1) for path in self.files)

    def digest(self) -> str:
        """SHA-256 of the contents of files."""
        digest = hashlib.sha256()
        for path in self.files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        datasets, split = import_datasets(f"reading {self}"), "validation" if self.split == "valid" else self.split
        try:
            yield datasets.load_dataset(self.hub, self.subset, split=split, revision=self.revision)
        except UserError:
            raise
        # A missing split or subset is a ValueError, a missing network an OSError.
        except (OSError, RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            kind = NoSplitError if text.startswith("Unknown split") else UserError
            raise kind(f"{self}: cannot be read: {text}") from error
