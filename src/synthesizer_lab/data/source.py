"""The rows of a split, in local files or a data set on the Hugging Face hub, and what tasks make of them.

Records are read when they are needed: large text is never held as a whole. `datasets`, which reads the hub, is imported
only when data is read.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from ..errors import NoSplitError, UserError, require
from .files import (
    MalformedLineError,
    chunks,
    count_characters,
    fingerprints,
    read_cached,
    read_rows,
    split_files,
    texts_of,
)

_PREFIX = "hub:"
# Compressed text is about this many times as large.
_COMPRESSION = 4
# The characters of a part of large text, which are parsed and tokenized at once.
_BLOCK = 2**20


def is_hub_name(data: Path) -> bool:
    """Whether `data` is the name of a data set on the hub, hub:OWNER/NAME, and not a path."""
    return str(data).startswith(_PREFIX)


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
        self,
        parse: Callable[[int, Any], Iterable[Any]],
        skip_bad_lines: bool | None = None,
        columns: Sequence[str] = (),
        header: Sequence[str] | None = None,
    ) -> Iterator[Any]:
        """The records that `parse` makes of each number and row: objects with named fields, or lines.

        A malformed row is an error, or None with `skip_bad_lines`; if that is None, the task has no such option.
        `columns` are needed of a table and of a data set on the hub, `header` is that of `read_rows`.
        """
        advice = "" if skip_bad_lines is None else "; correct it, or train with --skip-bad-lines"
        parts: Iterable[tuple[str, Iterator[tuple[int, Any]], Callable[..., Any]]]
        if self.hub:
            parts = [(f"{self}, row", enumerate(self.rows(columns), start=1), dict)]
        else:
            parts = ((f"{path}, line", *read_rows(path, header, columns)) for path in self.files)
        for place, rows, decode in parts:
            for number, row in rows:
                try:
                    yield from parse(number, decode(row))
                except MalformedLineError as error:
                    if not skip_bad_lines:
                        raise UserError(f"{place} {number}: {error}{advice}") from None
                    yield None

    def rows(self, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """The rows on the hub. A missing split raises NoSplitError."""
        table = self._table()
        if missing := [column for column in columns if column not in table.column_names]:
            known = ", ".join(table.column_names)
            raise UserError(f"{self}: no column {', '.join(missing)}; its columns are: {known}")
        yield from table

    def bytes(self) -> int:
        """The approximate size of the text; a split on the hub is downloaded."""
        if self.hub:
            return int(self._table().data.nbytes)
        return sum(path.stat().st_size * (_COMPRESSION if path.suffix == ".gz" else 1) for path in self.files)

    def digest(self) -> str:
        """SHA-256 of the contents of files."""
        digest = hashlib.sha256()
        for path in self.files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def _table(self) -> Any:
        datasets = require("datasets", "train", f"reading {self}")
        datasets.disable_progress_bars()
        datasets.logging.set_verbosity_error()
        split = "validation" if self.split == "valid" else self.split
        try:
            return datasets.load_dataset(self.hub, self.subset, split=split, revision=self.revision)
        # A missing split or subset is a ValueError, a missing network an OSError. Of files that do not fit each other
        # only the cause says something.
        except (OSError, RuntimeError, ValueError, datasets.exceptions.DatasetsError) as error:
            cause = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else None
            text = " ".join(str(cause or error).split())
            kind = NoSplitError if text.startswith("Unknown split") else UserError
            raise kind(f"{self}: cannot be read: {text.rstrip('.')}") from error


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
        """The lines behind each digest, by the name of the digest."""

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
        task: what the task is and makes of the text, which the cache is for.
    """

    source: Source
    read: Callable[[], Iterator[Any]]
    make: Callable[..., Any]
    task: Sequence[Any] = ()

    @property
    def name(self) -> str:
        """The name of the split."""
        return str(self.split([]).name)

    def split(self, rows: Sequence[Any], first: int = 1) -> Any:
        """The split that has some of the records; `first` is the number of the first one."""
        kept = [row for row in rows if row is not None]
        return self.make(kept, first=first, skipped=len(rows) - len(kept))

    def load(self) -> Any:
        """The whole split."""
        split = self.split([*self.read()])
        if not any(map(str.strip, split.all_texts())):
            malformed = f" ({split.skipped} malformed)" if split.skipped else ""
            place = f" in {note}" if (note := getattr(split, "note", "")) else ""
            raise UserError(f"{self.source}: there is no text{place}; expected at least one record{malformed}")
        return split

    def parts(self, characters: int | None = None) -> Iterator[tuple[Any, int]]:
        """Splits of neighboring records with about so many characters, each with its number of characters."""
        first = 1
        for rows in chunks(self.read(), characters or _BLOCK):
            yield self.split(rows, first), count_characters(rows)
            first += len(rows)

    def head(self) -> Any:
        """The first part."""
        for part, _ in self.parts():
            return part
        raise UserError(f"{self.source}: there is no text; expected at least one record")

    @cached_property
    def key(self) -> list[Any]:
        """Identifies the text and what the task makes of it."""
        names = [path.name for path in self.source.files]
        return [*self.task, names, self.fingerprint() if self.source.hub else self.source.digest()]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What one pass over the records tells about them; from the cache if the files were read before."""
        if self.source.hub:
            return self._summarize()

        def write(folder: Path) -> None:
            (folder / "summary.json").write_text(json.dumps(self._summarize()), encoding="utf-8")

        return read_cached("text", self.key, write, lambda folder: json.loads((folder / "summary.json").read_text()))

    def _summarize(self) -> dict[str, Any]:
        totals = {"records": 0, "characters": 0}

        def columns() -> Iterator[Mapping[str, Iterable[str]]]:
            for part, characters in self.parts():
                totals["records"] += len(part)
                totals["characters"] += characters
                yield part.columns()

        digests, counted = fingerprints(columns()), self.split([]).counted
        return {**totals, "fingerprint": {"split": self.name, counted: totals["records"], **digests}}

    def fingerprint(self) -> dict[str, str | int]:
        """Digests of the text, the same as of the split in memory."""
        return dict(self.summary["fingerprint"])

    def sample(self, characters: int) -> list[str]:
        """About so many characters of text, spread over the whole."""
        texts, share = list[str](), min(1.0, characters / max(1, self.summary["characters"]))
        for number, (part, _) in enumerate(self.parts(_BLOCK // 16)):
            if math.floor((number + 1) * share) > math.floor(number * share):
                texts += part.all_texts()
        # Of few parts, as of one long line, the share may be none.
        return texts or ["\n".join(self.head().all_texts())[:characters]]


@dataclass(frozen=True, eq=False)
class Corpus(Split):
    """The lines or documents of a split. The text is its own label."""

    texts: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    def all_texts(self) -> list[str]:
        return self.texts

    def columns(self) -> dict[str, Sequence[str]]:
        return {"sha256": self.texts}


def text_records(
    source: Source,
    name: str,
    fields: Sequence[str],
    option: str,
    clean: Callable[[str], str],
    keep_blank: bool = False,
    skip_bad_lines: bool | None = None,
    most: int | None = None,
) -> Records:
    """The lines of text files, or the `clean` text in the first of `fields` that a row of another file has.

    On the hub the first field is the column. `option` is the task's option that sets the field.
    """

    def parse(_: int, row: Any) -> list[str]:
        text = row if isinstance(row, str) else clean(" ".join(texts_of(row, *fields, option=option)))
        return [text] if keep_blank or text.strip() else []

    def read() -> Iterator[str | None]:
        return islice(source.parse(parse, skip_bad_lines, fields[:1] if source.hub else ()), most)

    return Records(source, read, partial(Corpus, name))
