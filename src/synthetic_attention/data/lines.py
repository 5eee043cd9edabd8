"""Read files of one record per line, gzip or not. Messages name the file and the line.

The parsers of `datasets` are not used for local files: its text reader also splits lines at a lone carriage return, its
CSV and JSON readers guess types ("01" becomes 1, "NA" becomes null), and none of them gives the line of a bad record.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import UserError

_CHUNK_BYTES = 2**20
Payload = TypeVar("Payload")
Record = TypeVar("Record")


class MalformedLineError(ValueError):
    """A line that does not follow its format; the message says why."""


@dataclass(frozen=True)
class Parsed(Generic[Record]):
    """The records of a file, and the number of malformed lines that were skipped."""

    records: list[Record]
    skipped: int = 0


def decode_lines(content: bytes, name: str, first_line: int = 1) -> list[str]:
    """Decode whole lines of UTF-8, without line ends and byte order mark. Only newlines end a line, as in `wc -l`."""
    if first_line == 1:
        content = content.removeprefix(b"\xef\xbb\xbf")
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    decoded = []
    for number, line in enumerate(lines, start=first_line):
        try:
            decoded.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: byte 0x{line[error.start]:02x} at position {error.start + 1} is not UTF-8; "
                "convert the file to UTF-8"
            ) from None
    return decoded


def stream_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, decompressed if its name ends with .gz. The file may be empty."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    first_line = 1
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while content := b"".join(file.readlines(_CHUNK_BYTES)):
                lines = decode_lines(content, str(path), first_line)
                yield from lines
                first_line += len(lines)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a complete gzip file ({error}); decompress it, or download it again") from None


def read_lines(path: Path) -> list[str]:
    """All lines of a file that is not empty, as `stream_lines` yields them."""
    lines = list(stream_lines(path))
    if not any(line.strip() for line in lines):
        raise UserError(f"{path}: the file is empty; expected at least one line of text")
    return lines


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of every line that is not blank."""
    blank = True
    for number, line in enumerate(stream_lines(path), start=1):
        if line.strip():
            blank = False
            yield number, line
    if blank:
        raise UserError(f"{path}: the file is empty; expected at least one line of text")


def collect(
    path: Path | str,
    lines: Iterable[tuple[int, Payload]],
    parse: Callable[[int, Payload], Iterable[Record]],
    skip_bad_lines: bool = False,
    unit: str = "line",
) -> Parsed[Record]:
    """Parse the numbered lines of a file; skip and count those for which `parse` raises MalformedLineError, or fail."""
    records: list[Record] = []
    skipped = 0
    for number, payload in lines:
        try:
            records.extend(parse(number, payload))
        except MalformedLineError as error:
            if not skip_bad_lines:
                raise UserError(
                    f"{path}, {unit} {number}: {error}; correct it, or skip such {unit}s with --set skip_bad_lines=true"
                ) from None
            skipped += 1
    if not records:
        raise UserError(f"{path}: no record is left; {skipped} {unit}s are malformed")
    return Parsed(records, skipped)


def json_object(line: str) -> dict[str, Any]:
    """Parse a line that holds one JSON object."""
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise MalformedLineError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise MalformedLineError(f"got a JSON {type(value).__name__}; expected an object with named fields")
    return value


def texts_of(row: dict[str, Any], field: str) -> list[str]:
    """The text, or list of texts, in a field of a JSON object."""
    if field not in row:
        raise MalformedLineError(f"no field {field!r}; the fields are: {', '.join(row) or 'none'}")
    value = row[field]
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            raise MalformedLineError(f"field {field!r} has a {type(text).__name__}; expected text, or a list of texts")
    return texts


def fingerprint(lines: Iterable[str]) -> str:
    """SHA-256 of the lines joined by newlines: independent of the file's place, line ends and compression."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
