"""Texts, or pairs of texts, with a class: CSV, TSV or JSON lines, gzip or not, with named or numbered columns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError
from .classes import Classes, as_number, listed, shortened
from .lines import MalformedLineError, Parsed, collect, json_object, numbered_lines
from .tables import Row, by_column, first_row, table_rows

__all__ = [
    "ENDINGS",
    "BlankFieldError",
    "Column",
    "Columns",
    "FileKind",
    "LabeledText",
    "guess_columns",
    "label_of",
    "read_labeled",
    "sides_of",
    "without_breaks",
]

Column = str | int
FileKind = Literal["csv", "tsv", "jsonl"]
_KINDS: dict[str, FileKind] = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".json": "jsonl"}
ENDINGS = tuple(_KINDS)
# What known data sets call the two texts of a pair, a text (or the parts that make one), and the class.
_PAIR_NAMES = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence")),
    *(("text", "text_pair"), ("text1", "text2")),
)
_TEXT_NAMES = (
    *(("title", "description"), ("title", "content"), ("title", "text"), ("text",), ("sentence",), ("review",)),
    *(("content",), ("document",)),
)
_LABEL_NAMES = ("label", "labels", "gold_label", "class", "class index", "category", "sentiment", "target", "score")
_BREAK = re.compile(r"(?:\s*<br\s*/?>)+\s*")


class BlankFieldError(MalformedLineError):
    """A row that lacks a text or a class."""


@dataclass(frozen=True)
class LabeledText:
    """A text, or two, and the class as the file writes it.

    The id is the file's field or column `id`, else the number of the line. Examples of one `group` have a text in
    common, by default the first.
    """

    id: str
    texts: tuple[str, ...]
    label: str
    group: str = ""


@dataclass(frozen=True)
class Columns:
    """Where the texts and the class are. A column is a name of the header, or a number from 1; JSON lines have names.

    Args:
        text: one column, or several that are joined by a space (a title and a description).
        label: the class.
        pair: the second text of a pair, likewise.
        header: whether the first line names the columns; None: where a column is given by name.
        breaks: replace `<br />` by a space.
        hidden: the column of the class may be missing, or blank, as in files of tests.
        numeric: the class is a number.
    """

    text: tuple[Column, ...] = ("text",)
    label: Column = "label"
    pair: tuple[Column, ...] = ()
    header: bool | None = None
    breaks: bool = False
    hidden: bool = False
    numeric: bool = False

    def __post_init__(self) -> None:
        if not self.text:
            raise UserError("got no column for the text; expected at least one")
        for column in self.wanted():
            if isinstance(column, bool) or not isinstance(column, str | int) or column in ("", 0):
                raise UserError(f"got column {column!r}; expected a name of the header, or a number from 1")
        if self.header is False and any(isinstance(column, str) for column in self.wanted()):
            raise UserError(f"got columns {self.wanted()} of a file without header; expected numbers from 1")

    def wanted(self) -> tuple[Column, ...]:
        """All columns that are read."""
        return (*self.text, *self.pair, self.label)

    def needed(self) -> tuple[Column, ...]:
        """Those of them that a file has to have."""
        return (*self.text, *self.pair) if self.hidden else self.wanted()

    def has_header(self) -> bool:
        """Whether the first line is a header."""
        return any(isinstance(column, str) for column in self.wanted()) if self.header is None else self.header


def guess_columns(path: Path, kind: FileKind | None = None, columns: Columns | None = None) -> Columns:
    """The columns of a file whose header, or first JSON object, has names that known data sets use.

    Args:
        kind: as for `read_labeled`.
        columns: what is known of them; the text, the pair and the class are looked for.

    Raises:
        UserError: they are not clear from the names; these are listed.
    """
    names = _names(path, kind or _kind(path))
    known = {name.lower(): name for name in names}
    pairs = [pair for pair in _PAIR_NAMES if {*pair} <= {*known}]
    texts = [text for text in _TEXT_NAMES if {*text} <= {*known}]
    labels = [name for name in _LABEL_NAMES if name in known]
    hidden = columns is not None and columns.hidden and not labels
    if (len(labels) != 1 and not hidden) or len(pairs) > 1 or not (pairs or texts):
        raise UserError(
            f"{path}: which columns are text and class is not clear from {', '.join(names)}; pass --set text=… and "
            "--set label=…, and for pairs text_pair=…: names, or numbers from 1 of a file without header"
        )
    found = replace(columns or Columns(), label="label" if hidden else known[labels[0]])
    if pairs:
        first, second = pairs[0]
        return replace(found, text=(known[first],), pair=(known[second],))
    return replace(found, text=tuple(known[name] for name in texts[0]), pair=())


def _names(path: Path, kind: FileKind) -> list[str]:
    """The fields of the first line."""
    if kind == "jsonl":
        number, line = next(numbered_lines(path))
        try:
            return list(json_object(line))
        except MalformedLineError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return [name.strip() for name in first_row(path, table_rows(path, kind == "csv"))[1]]


def read_labeled(
    path: Path,
    columns: Columns,
    kind: FileKind | None = None,
    classes: Classes | None = None,
    skip_bad_lines: bool = False,
) -> Parsed[LabeledText]:
    """Read texts and their classes. In CSV quotes are quoting, as RFC 4180 says; in TSV they are text.

    Args:
        kind: the format; by default what the file's name ends with: .csv, .tsv, .jsonl, .json, with or without .gz.
        classes: the classes there are; without it any.
        skip_bad_lines: leave out rows that are malformed, have a blank text or another class, and count them.

    Raises:
        UserError: the file cannot be read, lacks a column, has a malformed row, or its name does not tell the format.
    """
    kind = kind or _kind(path)

    def parse(number: int, row: Mapping[Any, Any]) -> Iterator[LabeledText]:
        label = label_of(row, columns)
        if label and classes is not None and label not in classes.values:
            raise MalformedLineError(f"got class {shortened(label)!r}; expected one of: {listed(classes.values)}")
        own = row.get("id")
        yield LabeledText(str(number if own is None else own), sides_of(row, columns), label)

    if kind == "jsonl":
        return collect(path, numbered_lines(path), lambda *row: parse(row[0], json_object(row[1])), skip_bad_lines)
    header, rows = _table(path, kind, columns)
    return collect(path, rows, lambda *row: parse(row[0], by_column(row[1], header)), skip_bad_lines)


def label_of(row: Mapping[Any, Any], columns: Columns) -> str:
    """The class of a row, by its columns; "" where it is hidden.

    Raises:
        MalformedLineError: it is missing, or no number where it has to be.
    """
    if columns.hidden and (row.get(columns.label) is None or not str(row[columns.label]).strip()):
        return ""
    label = _value(row, columns.label)
    if columns.numeric and as_number(label) is None:
        raise MalformedLineError(f"got the label {shortened(label)!r}; expected a number")
    return label


def sides_of(row: Mapping[Any, Any], columns: Columns) -> tuple[str, ...]:
    """The text of a row, or both texts of a pair, by its columns.

    Raises:
        MalformedLineError: one is missing or blank.
    """
    return tuple(_text(row, side, columns.breaks) for side in (columns.text, columns.pair) if side)


def _kind(path: Path) -> FileKind:
    name = path.name.removesuffix(".gz")
    for ending, kind in _KINDS.items():
        if name.endswith(ending):
            return kind
    raise UserError(f"{path}: the name does not tell the format; expected one of {', '.join(_KINDS)} (or with .gz)")


def _table(path: Path, kind: FileKind, columns: Columns) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """The names of the columns ("" for each where there is no header), and the rows with the lines they begin at."""
    rows = table_rows(path, kind == "csv")
    number, first = first_row(path, rows)
    header = [name.strip() for name in first] if columns.has_header() else [""] * len(first)
    for column in columns.needed():
        if column not in by_column(header, header):
            names = ", ".join(header) if columns.has_header() else "without header"
            raise UserError(f"{path}: no column {column!r}; the file has {len(header)} columns: {names}")
        if isinstance(column, str) and header.count(column) > 1:
            raise UserError(f"{path}: {header.count(str(column))} columns are called {column!r}; pass its number")
    if not columns.has_header() and columns.header is None:
        name = by_column(first, header).get(columns.label, "").strip()
        if name.lower() in _LABEL_NAMES:
            raise UserError(
                f"{path}, line {number}: the class is {name!r}, as the header of a file calls it; pass "
                "--set header=true, or header=false if it is a class"
            )
    return header, rows if columns.has_header() else chain([(number, first)], rows)


def _value(row: Mapping[Any, Any], column: Column) -> str:
    if column not in row:
        raise MalformedLineError(f"no field {column!r}; the fields are: {', '.join(map(str, row)) or 'none'}")
    value = row[column]
    if value is None:
        raise BlankFieldError(f"field {column!r} is null")
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise MalformedLineError(f"field {column!r} is no text")
    if not str(value).strip():
        raise BlankFieldError(f"field {column!r} is blank")
    return str(value).strip()


def _text(row: Mapping[Any, Any], side: Sequence[Column], breaks: bool) -> str:
    text = " ".join(_value(row, column) for column in side)
    text = without_breaks(text).strip() if breaks else text
    if not text:
        raise BlankFieldError(f"field {side[0]!r} is blank")
    return text


def without_breaks(text: str) -> str:
    """`text` with a space for each `<br />`, or several."""
    return _BREAK.sub(" ", text)
