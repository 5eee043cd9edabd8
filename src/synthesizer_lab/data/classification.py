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
from typing import Any, NamedTuple

from ..errors import UserError
from .files import MalformedLineError, as_number, json_object, numbered_lines, parse_lines, read_lines

Column = str | int
# The values of a row, or the reason why it is malformed.
_Row = list[str] | dict[str, Any] | MalformedLineError
ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
# Column names of known data sets: the two texts of a pair; a text, or its parts; the class.
_PAIRS = {"sentence1": "sentence2", "premise": "hypothesis", "question1": "question2", "question": "sentence"}
_PAIRS |= {"text": "text_pair", "text1": "text2"}
_TEXTS = ("title description", "title content", "title text", "text", "sentence", "review", "content", "document")
_LABELS = ("label", "labels", "gold_label", "class", "class index", "category", "sentiment", "target", "score")
_BREAK = re.compile(r"(?:\s*<br\s*/?>)+\s*")


class LabeledText(NamedTuple):
    """One text or two, the class as the file writes it ("" if hidden), and the field `id` or the line's number."""

    id: str
    texts: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Columns:
    """The columns of texts and class: names of the header or of JSON fields, or numbers from 1 without header.

    Args:
        text, pair: several columns are joined by a space; without `text` all three are chosen by known names.
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
    def required(self) -> tuple[Column, ...]:
        """The columns without which nothing can be read."""
        texts = (*self.text, *self.pair)
        return texts if self.hidden else (*texts, self.label)

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
                raise MalformedLineError(bad_label(label, self.classes, "the training data"))
        texts = [clean_br(" ".join(_value(row, column) for column in side)) for side in (self.text, self.pair) if side]
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


def bad_label(label: str, classes: Iterable[str], source: str) -> str:
    """The message for a label that is none of the classes."""
    shown = label if len(label) <= 80 else f"{label[:80]} …"
    return f"got class {shown!r}; expected one of: {listed(classes)}, the classes of {source}"


def clean_br(text: str) -> str:
    """One space in place of one or several `<br />`."""
    return _BREAK.sub(" ", text).strip()


def guess_columns(path: Path, names: Iterable[Any], columns: Columns) -> Columns:
    """Choose the columns of `path` among `names`; `columns` has all other settings."""
    names = [str(name).strip() for name in names]
    known = {name.lower(): name for name in names}
    pairs = [pair for pair in _PAIRS.items() if {*pair} <= {*known}]
    texts = [text.split() for text in _TEXTS if {*text.split()} <= {*known}]
    labels = [known[name] for name in _LABELS if name in known] or ["label"] * columns.hidden
    if len(labels) != 1 or len(pairs) > 1 or not (pairs or texts):
        raise UserError(
            f"{path}: cannot tell the columns of text and class from {', '.join(names)}; pass --set text=… and "
            "--set label=…, and for pairs text_pair=…: names, or numbers from 1 for a file without header"
        )
    sides = [[name] for name in pairs[0]] if pairs else [texts[0], []]
    text, pair = (tuple(known[name] for name in side) for side in sides)
    return replace(columns, text=text, pair=pair, label=labels[0])


def read_labeled(path: Path, columns: Columns, skip_bad_lines: bool = False) -> Iterator[LabeledText | None]:
    """Read texts and their classes. CSV has quotes as in RFC 4180; in TSV quotes are text."""
    rows = _rows(path)
    number, first = next(rows, (1, MalformedLineError("the file has only blank rows")))
    if isinstance(first, MalformedLineError):
        raise UserError(f"{path}, line {number}: {first}")
    if not columns.text:
        columns = guess_columns(path, first, columns)
    named = isinstance(first, list) and any(isinstance(name, str) for name in (*columns.required, columns.label))
    header = [name.strip() if named else "" for name in first]
    if isinstance(first, list):
        fields = _fields(first, header)
        for column in columns.required:
            if column not in fields or header.count(str(column)) > 1:
                raise UserError(f"{path}: no column {column!r}, or several; the columns are: {', '.join(first)}")
        if not named and (label := fields.get(columns.label, "").strip()).lower() in _LABELS:
            raise UserError(f"{path}, line {number}: class {label!r} looks like a header; pass the names of columns")
    if not named:
        rows = chain([(number, first)], rows)
    yield from parse_lines(
        path, rows, lambda number, row: [columns.parse(number, _fields(row, header))], skip_bad_lines
    )


def _rows(path: Path) -> Iterator[tuple[int, _Row]]:
    """The rows that are not blank, with the numbers of their first lines."""
    ending = Path(path.name.removesuffix(".gz")).suffix
    if ending != ".csv":
        for number, line in numbered_lines(path):
            try:
                yield number, line.split("\t") if ending == ".tsv" else json_object(line)
            except MalformedLineError as error:
                yield number, error
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


def _fields(row: _Row, header: Sequence[str]) -> dict[Any, Any]:
    """Values by the number of their column, and by its name if it has one."""
    if isinstance(row, MalformedLineError):
        raise row
    if isinstance(row, dict):
        return row
    if len(row) != len(header):
        raise MalformedLineError(f"got {len(row)} columns; expected {len(header)}")
    return {**dict(enumerate(row, start=1)), **{name: value for name, value in zip(header, row, strict=True) if name}}


def _value(row: Mapping[Any, Any], column: Column) -> str:
    if column not in row:
        raise MalformedLineError(f"no field {column!r}; the fields are: {', '.join(map(str, row)) or 'none'}")
    value = row[column]
    is_text = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    if value is not None and not is_text:
        raise MalformedLineError(f"field {column!r} is not text")
    if value is None or not str(value).strip():
        raise MalformedLineError(f"field {column!r} is blank")
    return str(value).strip()
