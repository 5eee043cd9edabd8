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
    """

    text: tuple[Column, ...] = ("text",)
    label: Column = "label"
    pair: tuple[Column, ...] = ()
    hidden: bool = False
    numeric: bool = False

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
    ending, header = Path(path.name.removesuffix(".gz")).suffix, list[str]()
    if ending in (".csv", ".tsv"):
        rows: Iterator[tuple[int, Any]] = _table_rows(path, ending)
        number, first = next(rows)
        if not columns.text:
            columns = guess_columns(path, first, columns)
        header = _header(path, first, columns)
        if not any(header):
            rows = chain([(number, first)], rows)
    else:
        rows = numbered_lines(path)
        if not columns.text:
            number, line = next(rows)
            (names,) = parse_lines(path, [(number, line)], lambda _, line: [json_object(line)])
            columns, rows = guess_columns(path, names or (), columns), chain([(number, line)], rows)

    def parse(number: int, row: Any) -> list[LabeledText]:
        return [columns.parse(number, json_object(row) if isinstance(row, str) else _fields(row, header))]

    yield from parse_lines(path, rows, parse, skip_bad_lines)


def _table_rows(path: Path, ending: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, with the numbers of their first lines."""
    # The default limit is 131,072 characters.
    csv.field_size_limit(sys.maxsize)
    dialect: dict[str, Any] = {"strict": True} if ending == ".csv" else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    reader, number, blank = csv.reader((f"{line}\n" for line in read_lines(path)), **dialect), 1, True
    try:
        for row in reader:
            if any(value.strip() for value in row):
                blank = False
                yield number, row
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {number}: {error}; expected CSV, with quotes doubled inside quotes") from None
    if blank:
        raise UserError(f"{path}: the file is empty; expected at least one line of text")


def _header(path: Path, first: list[str], columns: Columns) -> list[str]:
    """The names of the columns, blank for a file without header."""
    named = any(isinstance(name, str) for name in (*columns.required, columns.label))
    header = [name.strip() if named else "" for name in first]
    fields = _fields(first, header)
    for column in columns.required:
        if column not in fields or header.count(str(column)) > 1:
            raise UserError(f"{path}: no column {column!r}, or several; the columns are: {', '.join(first)}")
    if not named and (label := fields.get(columns.label, "").strip()).lower() in _LABELS:
        raise UserError(f"{path}, line 1: class {label!r} looks like a header; pass the names of columns")
    return header


def _fields(row: list[str], header: Sequence[str]) -> dict[Any, Any]:
    """Values by the number of their column, and by its name if it has one."""
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
