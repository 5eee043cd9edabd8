"""Texts, or pairs of texts, with a class or number: CSV, TSV or JSON lines, gzip or not."""

from __future__ import annotations

import csv
import math
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from .files import MalformedLineError, as_number, json_object, numbered_lines, parse_lines, read_lines
from .source import Source

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


def read_labeled(source: Source, columns: Columns, skip_bad_lines: bool = False) -> Iterator[LabeledText | None]:
    """Read texts and their classes. CSV has quotes as in RFC 4180; in TSV quotes are text."""
    if source.hub:
        columns = replace(columns, text=columns.text or ("text",))
        # Malformed rows, like those without text, are skipped.
        yield from source.parse(lambda *row: [columns.parse(*row)], True, [str(name) for name in columns.required])
        return
    (path,) = source.files
    header: list[str] = []
    if path.name.removesuffix(".gz").endswith((".csv", ".tsv")):
        rows: Iterator[tuple[int, Any]] = _table_rows(path)
        if not any(isinstance(column, int) for column in (*columns.required, columns.label)):
            _, names = next(rows, (0, []))
            header = [name.strip() for name in names]
    else:
        rows = numbered_lines(path)

    def fields(row: Any) -> dict[Any, Any]:
        if isinstance(row, str):
            return json_object(row)
        if header and len(row) != len(header):
            raise MalformedLineError(f"got {len(row)} columns; expected {len(header)}")
        return dict(zip(header or range(1, len(row) + 1), row, strict=True))

    def parse(number: int, row: Any) -> list[LabeledText]:
        nonlocal columns
        named = fields(row)
        if not columns.text:
            columns = guess_columns(path, header or named, columns)
        return [columns.parse(number, named)]

    yield from parse_lines(path, rows, parse, skip_bad_lines)


def _table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, with the numbers of their first lines."""
    # The default limit is 131,072 characters.
    csv.field_size_limit(sys.maxsize)
    is_csv = path.name.removesuffix(".gz").endswith(".csv")
    dialect: dict[str, Any] = {"strict": True} if is_csv else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    reader, number = csv.reader((f"{line}\n" for line in read_lines(path)), **dialect), 1
    try:
        for row in reader:
            if any(value.strip() for value in row):
                yield number, row
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {number}: {error}; expected CSV, with quotes doubled inside quotes") from None


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
