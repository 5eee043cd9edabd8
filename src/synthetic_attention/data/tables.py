"""Rows of CSV and TSV files."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError
from .lines import MalformedLineError, numbered_lines, unpacked_lines

__all__ = ["Row", "by_column", "first_row", "table_rows"]

# What is in the columns, or what is wrong with the row.
Row = list[str] | MalformedLineError


def table_rows(path: Path, is_csv: bool) -> Iterator[tuple[int, Row]]:
    """The rows of a file that are not blank, or what is wrong with one, and the lines that they begin at.

    In CSV quotes are quoting, as RFC 4180 says; else columns are divided by tabs, and quotes are text.
    """
    if is_csv:
        return _csv_rows(path)
    return ((number, line.split("\t")) for number, line in numbered_lines(path))


def first_row(path: Path, rows: Iterator[tuple[int, Row]]) -> tuple[int, list[str]]:
    """The first of `rows`, and its line.

    Raises:
        UserError: there is none, or it is malformed.
    """
    number, row = next(rows, (0, None))
    if row is None:
        raise UserError(f"{path}: the file is empty but for blank rows")
    if isinstance(row, MalformedLineError):
        raise UserError(f"{path}, line {number}: {row}")
    return number, row


def _csv_rows(path: Path) -> Iterator[tuple[int, Row]]:
    reader = csv.reader((f"{line}\n" for line in unpacked_lines(path)), strict=True)
    number = 1
    with _long_fields():
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


@contextmanager
def _long_fields() -> Iterator[None]:
    """Python's reader refuses fields of 131,072 characters, which a document may have."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def by_column(values: Row, header: Sequence[str]) -> dict[str | int, str]:
    """Values by the number of their column, from 1, and by its name, where it has one.

    Raises:
        MalformedLineError: the row is malformed, or has more or fewer columns than the header.
    """
    if isinstance(values, MalformedLineError):
        raise values
    if len(values) != len(header):
        raise MalformedLineError(f"got {len(values)} columns; expected {len(header)}")
    numbered: dict[str | int, str] = dict(enumerate(values, start=1))
    return {**numbered, **{name: value for name, value in zip(header, values, strict=True) if name}}
