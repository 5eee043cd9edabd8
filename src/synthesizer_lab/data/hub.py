"""Read data sets of the Hugging Face hub with `datasets`, which is imported only when data is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, require

_PREFIX = "hub:"


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
class HubDataset:
    """A data set OWNER/NAME on the hub, one of its configurations, and a branch, tag or commit."""

    name: str
    subset: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        return f"{_PREFIX}{self.name}"

    @classmethod
    def of(cls, data: Path, subset: str | None = None, revision: str | None = None) -> HubDataset:
        """The data set that `data` names: hub:OWNER/NAME."""
        name = str(data).removeprefix(_PREFIX)
        # Without an owner, `datasets` would read local files by the names of their formats.
        if not is_hub_name(data) or not all(name.split("/")) or name.count("/") != 1:
            raise UserError(f"got {str(data)!r}; expected hub:OWNER/NAME")
        return cls(name, subset, revision)

    def size(self, split: str) -> int:
        """The bytes of a split, which is downloaded. A missing split raises NoSplitError."""
        with self._opened(split) as table:
            return int(table.data.nbytes)

    def rows(self, split: str, columns: Sequence[str] = (), stream: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the rows of a split, which have at least `columns`. A missing split raises NoSplitError.

        With `stream` rows are downloaded while they are read; by default `datasets` caches the split.
        """
        with self._opened(split, stream) as table:
            known = table.column_names
            if missing := [column for column in columns if known is not None and column not in known]:
                raise UserError(f"{self}: no column {', '.join(missing)}; its columns are: {', '.join(known)}")
            yield from table

    @contextmanager
    def _opened(self, split: str, stream: bool = False) -> Iterator[Any]:
        datasets, split = import_datasets(f"reading {self}"), "validation" if split == "valid" else split
        try:
            yield datasets.load_dataset(self.name, self.subset, split=split, revision=self.revision, streaming=stream)
        except UserError:
            raise
        # A missing split or subset is a ValueError, a missing network an OSError.
        except (OSError, RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            kind = NoSplitError if text.startswith("Unknown split") else UserError
            raise kind(f"{self}, split {split!r}: cannot be read: {text}") from error
