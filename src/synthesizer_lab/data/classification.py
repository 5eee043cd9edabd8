"""Texts, or pairs of texts, with a class or number: CSV, TSV or JSON lines, gzip or not."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..errors import UserError
from .files import MalformedLineError, as_number, listed
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

    def parse(self, number: int, row: Mapping[Any, Any]) -> LabeledText:
        """The texts and the class of a row; MalformedLineError if one is missing."""
        label = _value(row, self.label, self.hidden)
        if self.numeric and label and as_number(label) is None:
            raise MalformedLineError(f"got the label {label!r}; expected a number")
        texts = [clean_br(" ".join(_value(row, column) for column in side)) for side in (self.text, self.pair) if side]
        if not all(texts):
            raise MalformedLineError(f"field {self.text[0]!r} is blank, or its pair")
        return LabeledText(str(row["id"] if row.get("id") is not None else number), tuple(texts), label)


def find_classes(source: object, labels: Iterable[str], names: Sequence[str] = ()) -> dict[str, str]:
    """The classes in `labels` of `source` with their names, sorted as numbers if all are, else alphabetically.

    Args:
        names: names of the classes in that order; by default the labels.
    """
    numbers = {label: as_number(label) for label in labels}
    numeric = None not in numbers.values()
    # Equal numbers (1 and 1.0) are sorted by their text, so that the order is fixed.
    values = sorted(numbers, key=lambda value: (numbers[value] if numeric else 0, value))
    if numeric and not names and not all(float(value).is_integer() for value in values):
        problem = "for numbers pass --set regression=true, else names with --set classes=…"
    elif len(values) < 2:
        problem = "expected at least two"
    elif names and len(names) != len(values):
        problem = f"expected {len(names)}, as many as names in --set classes=…"
    else:
        return dict(zip(values, names or values, strict=True))
    count = f"{len(values)} class{'es' * (len(values) != 1)}"
    advice = "or choose other columns with --set text=… label=…"
    raise UserError(f"{source}: got {count}: {listed(values)}; {problem}, {advice}")


def clean_br(text: str) -> str:
    """One space in place of one or several `<br />`."""
    return _BREAK.sub(" ", text).strip()


def guess_columns(source: object, names: Collection[str], columns: Columns) -> Columns:
    """Choose the columns of `source` among `names`; `columns` has all other settings."""
    known = {name.lower(): name for name in names}
    pairs = [pair for pair in _PAIRS.items() if {*pair} <= {*known}]
    texts = [text.split() for text in _TEXTS if {*text.split()} <= {*known}]
    labels = [known[name] for name in _LABELS if name in known] or ["label"] * columns.hidden
    if len(labels) != 1 or len(pairs) > 1 or not (pairs or texts):
        raise UserError(
            f"{source}: cannot tell the columns of text and class from {listed(names)}; pass --set text=… and "
            "--set label=…, and for pairs text_pair=…: names, or numbers from 1 for a file without header"
        )
    sides = [[name] for name in pairs[0]] if pairs else [texts[0], []]
    text, pair = (tuple(known[name] for name in side) for side in sides)
    return replace(columns, text=text, pair=pair, label=labels[0])


def read_labeled(source: Source, columns: Columns, skip_bad_lines: bool = False) -> Iterator[LabeledText | None]:
    """Read texts and their classes. Of a hub data set malformed rows, like those without text, are skipped."""
    if source.hub:
        columns, skip_bad_lines = replace(columns, text=columns.text or ("text",)), True

    def parse(number: int, row: Any) -> list[LabeledText]:
        nonlocal columns
        if isinstance(row, str):
            raise UserError(f"{source}: expected a file with one of the endings {', '.join(ENDINGS)}")
        if not columns.text:
            columns = guess_columns(source, row, columns)
        return [columns.parse(number, row)]

    names = [*columns.text, *columns.pair, *([] if columns.hidden else [columns.label])] if columns.text else []
    header = () if any(isinstance(name, int) for name in (*names, columns.label)) else None
    return source.parse(parse, skip_bad_lines, [*map(str, names)], header)


def _value(row: Mapping[Any, Any], column: Column, may_lack: bool = False) -> str:
    value = row.get(column)
    text = "" if value is None else str(value).strip()
    is_text = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    if value is not None and not is_text:
        raise MalformedLineError(f"field {column!r} is not text")
    if column not in row and not may_lack:
        known = listed(map(str, row)) or "none"
        raise MalformedLineError(f"no field {column!r}; the fields are: {known} (--set text=… label=…)")
    if not text and not may_lack:
        raise MalformedLineError(f"field {column!r} is blank")
    return text
