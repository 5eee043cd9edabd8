"""Rows of data sets on the Hugging Face hub, by the library `datasets`, which is imported only here and only then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..tasks.extras import require

__all__ = ["HubSet", "NoSplitError", "is_hub_name"]

_PREFIX = "hub:"
# What `datasets` calls the splits, where we have another name for them.
_SPLITS = {"valid": "validation"}
# How the message of `datasets` begins.
_UNKNOWN_SPLIT = "Unknown split"


class NoSplitError(UserError):
    """A data set has no split of that name."""


def is_hub_name(data: Path) -> bool:
    """Whether `data` is no path but the name of a data set: hub:OWNER/NAME."""
    return str(data).startswith(_PREFIX)


@dataclass(frozen=True)
class HubSet:
    """A data set on the hub.

    Args:
        name: OWNER/NAME.
        subset: which of its configurations, for those that have several ("wikitext-2-raw-v1", "en").
        revision: a branch, tag or commit; by default the newest of the main branch.
    """

    name: str
    subset: str | None = None
    revision: str | None = None

    @classmethod
    def of(cls, data: Path, subset: str | None = None, revision: str | None = None) -> HubSet:
        """The data set that `data` names: hub:OWNER/NAME.

        Raises:
            UserError: the name has another form.
        """
        name = str(data).removeprefix(_PREFIX)
        if not is_hub_name(data) or not all(name.split("/")) or name.count("/") > 1:
            raise UserError(f"got {str(data)!r}; expected hub:OWNER/NAME")
        return cls(name, subset, revision)

    def rows(
        self,
        split: str,
        columns: Sequence[str],
        *,
        stream: bool = False,
        limit: int | None = None,
        optional: Sequence[str] = (),
    ) -> Iterator[tuple[Any, ...]]:
        """The values of `columns` in each row of a split.

        Args:
            split: "train", "valid", "test", or what the data set calls it; "train[:1%]" for a part, without `stream`.
            stream: fetch the rows as they are asked for, and keep none; else the split is fetched whole, and kept by
                `datasets`.
            limit: give no more rows than this.
            optional: those of `columns` that may be missing; their values are None then.

        Raises:
            UserError: `datasets` is not installed, or the data set or column is not there or cannot be fetched.
            NoSplitError: the split is not there.
        """
        datasets = require("datasets", "hub", f"reading {_PREFIX}{self.name}")
        called = _SPLITS.get(split, split)
        try:
            found = datasets.load_dataset(
                self.name, self.subset, split=called, revision=self.revision, streaming=stream
            )
            there = found.column_names
            missing = [column for column in columns if there is not None and column not in (*there, *optional)]
            if missing:
                raise UserError(
                    f"{_PREFIX}{self.name}: no column {', '.join(missing)}; its columns are: {', '.join(there)}"
                )
            for row in islice(found, limit):
                yield tuple(row.get(column) if column in optional else row[column] for column in columns)
        except UserError:
            raise
        # A split or subset that is not there is a ValueError, a network that is not there an OSError.
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            kind = NoSplitError if text.startswith(_UNKNOWN_SPLIT) else UserError
            raise kind(f"{_PREFIX}{self.name}, split {called!r}: cannot be read: {text}") from error
