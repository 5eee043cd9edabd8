"""Files of one record a line, gzip or not; a line that cannot be read is refused with file and number, or counted."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import UserError
from .text import decode_lines

__all__ = [
    "MalformedLineError",
    "Parsed",
    "collect",
    "json_object",
    "numbered_lines",
    "stream_lines",
    "texts_of",
    "unpacked_lines",
]

# Bytes of lines to decode at a time.
_CHUNK = 2**20
Payload = TypeVar("Payload")
Record = TypeVar("Record")


class MalformedLineError(ValueError):
    """A line that is not what its format says; the message tells what is wrong with it."""


@dataclass(frozen=True)
class Parsed(Generic[Record]):
    """The records of a file, and how many of its lines were left out because they are malformed."""

    records: list[Record]
    skipped: int = 0


def unpacked_lines(path: Path) -> list[str]:
    """Lines of a UTF-8 file that has some text; it is unpacked if its name ends with .gz.

    Raises:
        UserError: the file is missing, no gzip file though it is called so, not UTF-8, or without any text.
    """
    lines = list(stream_lines(path))
    if not any(line.strip() for line in lines):
        raise _empty(path)
    return lines


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number, from 1, and text of every line that is not blank, as they are read; otherwise as `unpacked_lines`."""
    blank = True
    for number, line in enumerate(stream_lines(path), start=1):
        if line.strip():
            blank = False
            yield number, line
    if blank:
        raise _empty(path)


def stream_lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 file as they are read, unpacked if its name ends with .gz; there may be none.

    Raises:
        UserError: on the way: the file is missing, no gzip file though it is called so, or not UTF-8.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    first_line = 1
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while content := b"".join(file.readlines(_CHUNK)):
                lines = decode_lines(content, str(path), first_line)
                yield from lines
                first_line += len(lines)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a whole gzip file ({error}); unpack it, or fetch it again") from None


def _empty(path: Path) -> UserError:
    return UserError(f"{path}: the file is empty; expected a line of text at least")


def collect(
    path: Path | str,
    numbered: Iterable[tuple[int, Payload]],
    parse: Callable[[int, Payload], Iterable[Record]],
    skip_bad_lines: bool = False,
    *,
    unit: str = "line",
    left_out: type[MalformedLineError] | tuple[()] = (),
) -> Parsed[Record]:
    """The records that `parse` makes of each line.

    Args:
        path: what messages call the file.
        numbered: number and content of each line.
        parse: takes both; raises `MalformedLineError` for a line that it cannot read.
        skip_bad_lines: leave such lines out and count them.
        unit: what messages call a line.
        left_out: lines of this kind are left out and counted in any case.

    Raises:
        UserError: there is such a line and `skip_bad_lines` is off; or no record is left.
    """
    records: list[Record] = []
    skipped = 0
    for number, payload in numbered:
        try:
            records.extend(parse(number, payload))
        except MalformedLineError as error:
            if not skip_bad_lines and not isinstance(error, left_out):
                raise UserError(
                    f"{path}, {unit} {number}: {error}; put it right, or leave such {unit}s out with skip_bad_lines"
                ) from None
            skipped += 1
    if not records:
        raise UserError(f"{path}: no record is left; {skipped} {unit}s are malformed")
    return Parsed(records, skipped)


def json_object(line: str) -> dict[str, Any]:
    """The JSON object on a line.

    Raises:
        MalformedLineError: it is not JSON, or another kind of value.
    """
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise MalformedLineError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise MalformedLineError(f"got a JSON {type(value).__name__}; expected an object with named fields")
    return value


def texts_of(row: dict[str, Any], field: str) -> list[str]:
    """The text, or list of texts, that a field of a JSON object has.

    Raises:
        MalformedLineError: the field is missing, or is something else; the message lists the fields that are there.
    """
    if field not in row:
        raise MalformedLineError(f"no field {field!r}; the fields are: {', '.join(row) or 'none'}")
    value = row[field]
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            raise MalformedLineError(f"field {field!r} has a {type(text).__name__}; expected text, or a list of texts")
    return texts
