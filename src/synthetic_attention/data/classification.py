"""Texts, or pairs of texts, with a class or number: CSV, TSV or JSON lines, gzip or not."""

from __future__ import annotations

import csv
import math
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import MalformedLineError, Parsed, collect, json_object, numbered_lines, read_lines

Column = str | int
# A line of TSV or JSON, the values of a row of CSV, or the reason why the row is malformed.
_Row = str | list[str] | MalformedLineError
ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
# Column names of known data sets: the two texts of a pair; a text, or its parts; the class.
_PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence")),
    *(("text", "text_pair"), ("text1", "text2")),
)
_TEXTS = (
    *(("title", "description"), ("title", "content"), ("title", "text"), ("text",), ("sentence",), ("review",)),
    *(("content",), ("document",)),
)
_LABELS = ("label", "labels", "gold_label", "class", "class index", "category", "sentiment", "target", "score")
_BREAK = re.compile(r"(?:\s*<br\s*/?>)+\s*")


@dataclass(frozen=True)
class LabeledText:
    """One text or two, the class as the file writes it ("" if hidden), and the field `id` or the line's number."""

    id: str
    texts: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Columns:
    """The columns of texts and class: names of the header or of JSON fields, or numbers from 1 without header.

    Args:
        text, pair: each one column, or several that are joined by a space (a title and a description).
        hidden: the class may be missing or blank, as in test files.
        numeric: the class is a number.
        classes: the known classes; () for any.
    """

    text: tuple[Column, ...] = ("text",)
    label: Column = "label"
    pair: tuple[Column, ...] = ()
    hidden: bool = False
    numeric: bool = False
    classes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[Column, ...]:
        """All columns that are read."""
        return (*self.text, *self.pair, self.label)

    def parse(self, number: int, row: Mapping[Any, Any]) -> LabeledText:
        """The texts and the class of a row; MalformedLineError if one is missing."""
        label = row.get(self.label)
        if self.hidden and (label is None or not str(label).strip()):
            label = ""
        else:
            label = _value(row, self.label)
            if self.numeric and as_number(label) is None:
                raise MalformedLineError(f"got the label {label!r}; expected a number")
            if self.classes and label not in self.classes:
                raise MalformedLineError(unknown_class(label, self.classes, "the training data"))
        texts = [
            clean_text(" ".join(_value(row, column) for column in side)) for side in (self.text, self.pair) if side
        ]
        if not all(texts):
            raise MalformedLineError(f"field {self.text[0]!r} is blank, or its pair")
        return LabeledText(str(row["id"] if row.get("id") is not None else number), tuple(texts), label)


def find_classes(labels: Iterable[str], names: Sequence[str] = ()) -> dict[str, str]:
    """The classes in `labels` with their names, sorted as numbers if all are, else alphabetically.

    Args:
        names: names of the classes in that order; by default the labels.
    """
    numbers = {label: as_number(label) for label in labels}
    numeric = None not in numbers.values()
    # Equal numbers (1 and 1.0) are sorted by their text, so that the order is fixed.
    values = sorted(numbers, key=lambda value: (numbers[value] if numeric else 0, value))
    problem = ""
    if numeric and not names and not all(float(value).is_integer() for value in values):
        problem = "for numbers pass --set regression=true, else names with --set classes=…"
    elif len(values) < 2:
        problem = "expected at least two"
    elif names and len(names) != len(values):
        problem = f"expected {len(names)}, as many as names in --set classes=…"
    if problem:
        count = f"{len(values)} class{'es' * (len(values) != 1)}"
        raise UserError(f"got {count}: {listed(values)}; {problem}, or choose other columns with --set text=… label=…")
    return dict(zip(values, names or values, strict=True))


def listed(values: Iterable[str]) -> str:
    """The first 300 characters of the values."""
    return textwrap.shorten(", ".join(values), 300, placeholder=" …")


def unknown_class(label: str, classes: Iterable[str], source: str) -> str:
    """The message for a label that is none of the classes."""
    shown = label if len(label) <= 80 else f"{label[:80]} …"
    return f"got class {shown!r}; expected one of: {listed(classes)}, the classes of {source}"


def as_number(text: str) -> float | None:
    """The finite number that a text contains, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def clean_text(text: str) -> str:
    """One space in place of one or several `<br />`."""
    return _BREAK.sub(" ", text).strip()


def guess_columns(path: Path, columns: Columns) -> Columns:
    """Choose the columns by names that known data sets use; `columns` has all other settings."""
    names = [str(name).strip() for name in _first(path, _rows(path))[2]]
    known = {name.lower(): name for name in names}
    pairs = [pair for pair in _PAIRS if {*pair} <= {*known}]
    texts = [text for text in _TEXTS if {*text} <= {*known}]
    labels = [known[name] for name in _LABELS if name in known] or ["label"] * columns.hidden
    if len(labels) != 1 or len(pairs) > 1 or not (pairs or texts):
        raise UserError(
            f"{path}: cannot tell the columns of text and class from {', '.join(names)}; pass --set text=… and "
            "--set label=…, and for pairs text_pair=…: names, or numbers from 1 for a file without header"
        )
    text, pair = ((side,) for side in pairs[0]) if pairs else (texts[0], ())
    return replace(
        columns, label=labels[0], text=tuple(known[name] for name in text), pair=tuple(known[name] for name in pair)
    )


def read_labeled(path: Path, columns: Columns, skip_bad_lines: bool = False) -> Parsed[LabeledText]:
    """Read texts and their classes. CSV has quotes as in RFC 4180; in TSV quotes are text."""
    rows = _rows(path)
    number, row, first = _first(path, rows)
    header: list[str] = []
    if isinstance(first, list):
        header = [""] * len(first)
        if any(isinstance(column, str) for column in columns.names):
            header = [name.strip() for name in first]
        fields = _fields(first, header)
        for column in columns.names[: -1 if columns.hidden else None]:
            if column not in fields or header.count(str(column)) > 1:
                raise UserError(f"{path}: no column {column!r}, or several; the columns are: {', '.join(first)}")
        if not any(header) and (label := fields.get(columns.label, "").strip()).lower() in _LABELS:
            raise UserError(f"{path}, line {number}: class {label!r} looks like a header; pass the names of columns")
    if not any(header):
        rows = chain([(number, row)], rows)

    def parse(number: int, row: _Row) -> list[LabeledText]:
        return [columns.parse(number, _fields(_parsed(path, row), header))]

    return collect(path, rows, parse, skip_bad_lines)


def _rows(path: Path) -> Iterator[tuple[int, _Row]]:
    """The rows that are not blank, with the numbers of their first lines."""
    if Path(path.name.removesuffix(".gz")).suffix != ".csv":
        yield from numbered_lines(path)
        return
    # The default limit is 131,072 characters.
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader((f"{line}\n" for line in read_lines(path)), strict=True)
    number, done = 1, False
    while not done:
        try:
            row = next(reader, None)
            done = row is None
            if row and any(value.strip() for value in row):
                yield number, row
        except csv.Error as error:
            yield number, MalformedLineError(f"{error}; expected CSV, with quotes doubled inside quotes")
        number = reader.line_num + 1


def _first(path: Path, rows: Iterator[tuple[int, _Row]]) -> tuple[int, _Row, list[str] | dict[str, Any]]:
    """The number of the first row, the row, and its content."""
    number, row = next(rows, (1, MalformedLineError("the file has only blank rows")))
    try:
        return number, row, _parsed(path, row)
    except MalformedLineError as error:
        raise UserError(f"{path}, line {number}: {error}") from None


def _parsed(path: Path, row: _Row) -> list[str] | dict[str, Any]:
    if isinstance(row, MalformedLineError):
        raise row
    if isinstance(row, list):
        return row
    return row.split("\t") if path.name.removesuffix(".gz").endswith(".tsv") else json_object(row)


def _fields(row: list[str] | dict[str, Any], header: Sequence[str]) -> dict[Any, Any]:
    """Values by the number of their column, and by its name if it has one."""
    if isinstance(row, dict):
        return row
    if len(row) != len(header):
        raise MalformedLineError(f"got {len(row)} columns; expected {len(header)}")
    return {**dict(enumerate(row, start=1)), **{name: value for name, value in zip(header, row, strict=True) if name}}


def _value(row: Mapping[Any, Any], column: Column) -> str:
    if column not in row:
        raise MalformedLineError(f"no field {column!r}; the fields are: {', '.join(map(str, row)) or 'none'}")
    value = row[column]
    if value is None or not str(value).strip():
        raise MalformedLineError(f"field {column!r} is blank")
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise MalformedLineError(f"field {column!r} is not text")
    return str(value).strip()
