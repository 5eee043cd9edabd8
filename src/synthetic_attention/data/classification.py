"""Texts, or pairs of texts, with a class or number: CSV, TSV or JSON lines, gzip or not."""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import UserError
from .lines import MalformedLineError, Parsed, collect, json_object, numbered_lines, read_lines

Column = str | int
# The columns of a row, the fields of a JSON object, or the reason why it is malformed.
_Row = list[str] | dict[str, Any] | MalformedLineError
ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
# Column names of known data sets: the two texts of a pair; a text, or its parts; the class.
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


@dataclass(frozen=True)
class LabeledText:
    """One text or two, the class as the file writes it ("" if hidden), and the field `id` or the line's number."""

    id: str
    texts: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Classes:
    """The classes of a data set in the order of their indices: as the files write them, and as users name them."""

    values: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, labels: Iterable[str], names: Sequence[str] = ()) -> Classes:
        """The classes in `labels`, sorted as numbers if all are, else alphabetically, with names in that order."""
        found = {*labels}
        numbers = {value: number for value in found if (number := as_number(value)) is not None}
        all_numbers = len(numbers) == len(found)
        # Equal numbers (1 and 1.0) are sorted by their text, so that the order is fixed.
        values = tuple(sorted(found, key=lambda value: (numbers[value], value) if all_numbers else value))
        classes, column = f"got {len(values)} classes: {listed(values)}", "the column of the class with --set label=…"
        if all_numbers and not names and not all(number.is_integer() for number in numbers.values()):
            raise UserError(
                f"{classes}; for numbers pass --set regression=true, else names with --set classes=…, or {column}"
            )
        if len(values) < 2:
            raise UserError(f"{classes}; expected at least two; pass {column}")
        if names and len(names) != len(values):
            raise UserError(f"{classes}; expected {len(names)}, as many as names in --set classes=…; or pass {column}")
        return cls(values, tuple(names) or values)

    def index(self, label: str) -> int:
        """The index of the class that a file writes as `label`."""
        if label not in self.values:
            raise UserError(f"got class {_shortened(label)!r}; expected one of: {listed(self.values)}")
        return self.values.index(label)


def listed(values: Sequence[str]) -> str:
    """The first ten of `values`, shortened, and the number of the others."""
    more = f", … ({len(values) - 10} more)" if len(values) > 10 else ""
    return ", ".join(map(_shortened, values[:10])) + more


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


def as_number(text: str) -> float | None:
    """The finite number that a text contains, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class Columns:
    """The columns of texts and class: names of the header or of JSON fields, or numbers from 1.

    Args:
        text, pair: each one column, or several that are joined by a space (a title and a description).
        header: whether the first line is a header; None: if a column is given by name.
        breaks: replace `<br />` by a space.
        hidden: the class may be missing or blank, as in test files.
    """

    text: tuple[Column, ...] = ("text",)
    label: Column = "label"
    pair: tuple[Column, ...] = ()
    header: bool | None = None
    breaks: bool = False
    hidden: bool = False
    numeric: bool = False

    def __post_init__(self) -> None:
        if self.header is False and any(isinstance(column, str) for column in self.wanted()):
            raise UserError(f"got columns {self.wanted()} of a file without header; expected numbers from 1")

    def wanted(self) -> tuple[Column, ...]:
        """All columns that are read."""
        return (*self.text, *self.pair, self.label)

    def needed(self) -> tuple[Column, ...]:
        """The columns that a file must have."""
        return (*self.text, *self.pair) if self.hidden else self.wanted()

    def has_header(self) -> bool:
        """Whether the first line is a header."""
        return any(isinstance(column, str) for column in self.wanted()) if self.header is None else self.header


def guess_columns(path: Path, columns: Columns | None = None) -> Columns:
    """Choose the columns by names that known data sets use; `columns` has all other settings."""
    names = [name.strip() for name in _first_row(path, _rows(path))[1]]
    known = {name.lower(): name for name in names}
    pairs = [pair for pair in _PAIR_NAMES if {*pair} <= {*known}]
    texts = [text for text in _TEXT_NAMES if {*text} <= {*known}]
    labels = [name for name in _LABEL_NAMES if name in known]
    hidden = columns is not None and columns.hidden and not labels
    if (len(labels) != 1 and not hidden) or len(pairs) > 1 or not (pairs or texts):
        raise UserError(
            f"{path}: cannot tell the columns of text and class from {', '.join(names)}; pass --set text=… and "
            "--set label=…, and for pairs text_pair=…: names, or numbers from 1 for a file without header"
        )
    found = replace(columns or Columns(), label="label" if hidden else known[labels[0]])
    if pairs:
        first, second = pairs[0]
        return replace(found, text=(known[first],), pair=(known[second],))
    return replace(found, text=tuple(known[name] for name in texts[0]), pair=())


def read_labeled(
    path: Path,
    columns: Columns,
    classes: Classes | None = None,
    skip_bad_lines: bool = False,
) -> Parsed[LabeledText]:
    """Read texts and their classes, all or the given ones. CSV has quotes as in RFC 4180; in TSV quotes are text."""
    rows = _rows(path)
    number, first = _first_row(path, rows)
    header: list[str] = []
    if isinstance(first, list):
        header = [name.strip() for name in first] if columns.has_header() else [""] * len(first)
        for column in columns.needed():
            if column not in _fields(header, header) or (isinstance(column, str) and header.count(column) > 1):
                raise UserError(f"{path}: no column {column!r}, or several; the columns are: {', '.join(header)}")
        label = "" if columns.has_header() else _fields(first, header).get(columns.label, "").strip()
        if columns.header is None and label.lower() in _LABEL_NAMES:
            raise UserError(
                f"{path}, line {number}: class {label!r} looks like a header; pass --set header=true or false"
            )
    if not isinstance(first, list) or not columns.has_header():
        rows = chain([(number, first)], rows)

    def parse(number: int, row: _Row) -> Iterator[LabeledText]:
        fields = _fields(row, header)
        label = label_of(fields, columns)
        if label and classes is not None and label not in classes.values:
            raise MalformedLineError(f"got class {_shortened(label)!r}; expected one of: {listed(classes.values)}")
        own = fields.get("id")
        yield LabeledText(str(number if own is None else own), sides_of(fields, columns), label)

    return collect(path, rows, parse, skip_bad_lines)


def label_of(row: Mapping[Any, Any], columns: Columns) -> str:
    """The class of a row; "" if it is hidden."""
    if columns.hidden and (row.get(columns.label) is None or not str(row[columns.label]).strip()):
        return ""
    label = _value(row, columns.label)
    if columns.numeric and as_number(label) is None:
        raise MalformedLineError(f"got the label {_shortened(label)!r}; expected a number")
    return label


def sides_of(row: Mapping[Any, Any], columns: Columns) -> tuple[str, ...]:
    """The text of a row, or both texts of a pair."""
    return tuple(_text(row, side, columns.breaks) for side in (columns.text, columns.pair) if side)


def without_breaks(text: str) -> str:
    """Replace one or several `<br />` by a space."""
    return _BREAK.sub(" ", text)


def _value(row: Mapping[Any, Any], column: Column) -> str:
    if column not in row:
        raise MalformedLineError(f"no field {column!r}; the fields are: {', '.join(map(str, row)) or 'none'}")
    value = row[column]
    if value is None or not str(value).strip():
        raise MalformedLineError(f"field {column!r} is blank")
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise MalformedLineError(f"field {column!r} is not text")
    return str(value).strip()


def _text(row: Mapping[Any, Any], side: Sequence[Column], breaks: bool) -> str:
    text = " ".join(_value(row, column) for column in side)
    text = without_breaks(text).strip() if breaks else text
    if not text:
        raise MalformedLineError(f"field {side[0]!r} is blank")
    return text


def _rows(path: Path) -> Iterator[tuple[int, _Row]]:
    """The rows that are not blank, with the numbers of their first lines."""
    ending = Path(path.name.removesuffix(".gz")).suffix
    if ending not in ENDINGS:
        raise UserError(f"{path}: unknown file name ending; expected one of {', '.join(ENDINGS)} (or with .gz)")
    if ending == ".csv":
        yield from _csv_rows(path)
        return
    for number, line in numbered_lines(path):
        try:
            yield number, line.split("\t") if ending == ".tsv" else json_object(line)
        except MalformedLineError as error:
            yield number, error


def _csv_rows(path: Path) -> Iterator[tuple[int, _Row]]:
    # The default limit is 131,072 characters.
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader((f"{line}\n" for line in read_lines(path)), strict=True)
    number = 1
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, MalformedLineError(f"{error}; expected CSV, with quotes doubled inside quotes")
        else:
            if any(value.strip() for value in row):
                yield number, row
        number = reader.line_num + 1


def _first_row(path: Path, rows: Iterator[tuple[int, _Row]]) -> tuple[int, list[str] | dict[str, Any]]:
    number, row = next(rows, (1, MalformedLineError("the file has only blank rows")))
    if isinstance(row, MalformedLineError):
        raise UserError(f"{path}, line {number}: {row}")
    return number, row


def _fields(row: _Row, header: Sequence[str]) -> dict[Any, Any]:
    """Values by the number of their column, and by its name if it has one."""
    if isinstance(row, MalformedLineError):
        raise row
    if isinstance(row, dict):
        return row
    if len(row) != len(header):
        raise MalformedLineError(f"got {len(row)} columns; expected {len(header)}")
    return {**dict(enumerate(row, start=1)), **{name: value for name, value in zip(header, row, strict=True) if name}}
