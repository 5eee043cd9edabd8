"""Documents and their summaries: JSON lines with named fields, gzip or not, or the columns of a set on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from .hub import HubSet
from .lines import MalformedLineError, Parsed, collect, json_object, numbered_lines, texts_of

__all__ = ["KNOWN_FIELDS", "Summary", "read_hub_summaries", "read_summaries"]

# (document, summary) as data sets name them: CNN/DailyMail, SciTLDR, XSum, arXiv.
KNOWN_FIELDS = (("article", "highlights"), ("source", "target"), ("document", "summary"), ("article", "abstract"))


@dataclass(frozen=True)
class Summary:
    """A document with one or several reference summaries.

    A summary keeps the line breaks of the file, which ROUGE-Lsum takes for ends of sentences.
    """

    id: str
    document: str
    summaries: tuple[str, ...]


def read_summaries(
    path: Path,
    document_field: str | None = None,
    summary_field: str | None = None,
    skip_bad_lines: bool = False,
) -> Parsed[Summary]:
    """Read JSON lines.

    A document that is a list is one of sentences: they are joined by spaces. A summary that is a list is one of
    several references. An example's id is its field `id`, else the number of its line.

    Args:
        document_field, summary_field: the fields, given both or neither; without them, the first pair of
            `KNOWN_FIELDS` that the first line has.
        skip_bad_lines: leave out lines that are malformed, or have a blank document or no summary, and count them.

    Raises:
        UserError: the file cannot be read, a line is malformed, or only one field is named.
    """
    fields = _both(document_field, summary_field)

    def parse(number: int, line: str) -> Iterator[Summary]:
        nonlocal fields
        row = json_object(line)
        fields = fields or _recognise(row)
        yield _summary(row, *fields, number)

    return collect(path, numbered_lines(path), parse, skip_bad_lines)


def read_hub_summaries(
    source: HubSet,
    split: str,
    document_field: str | None = None,
    summary_field: str | None = None,
    skip_bad_lines: bool = False,
) -> Parsed[Summary]:
    """Read a split of a data set on the hub, row by row as `read_summaries` does lines; an example's id is its number.

    Raises:
        UserError: it cannot be read, a row is malformed, or only one column is named.
    """
    fields = _both(document_field, summary_field) or KNOWN_FIELDS[0]

    def parse(number: int, row: tuple[Any, ...]) -> Iterator[Summary]:
        yield _summary(dict(zip(fields, row, strict=True)), *fields, number)

    return collect(Path(f"hub:{source.name}"), enumerate(source.rows(split, fields), start=1), parse, skip_bad_lines)


def _both(document_field: str | None, summary_field: str | None) -> tuple[str, str] | None:
    if (document_field is None) != (summary_field is None):
        raise UserError(
            f"got document_field={document_field!r} and summary_field={summary_field!r}; expected both, or neither"
        )
    return None if document_field is None or summary_field is None else (document_field, summary_field)


def _recognise(row: dict[str, Any]) -> tuple[str, str]:
    for pair in KNOWN_FIELDS:
        if row.keys() >= {*pair}:
            return pair
    known = ", ".join("/".join(pair) for pair in KNOWN_FIELDS)
    raise MalformedLineError(
        f"the fields are {', '.join(row)}; expected one of the pairs {known}, or document_field and summary_field"
    )


def _summary(row: dict[str, Any], document_field: str, summary_field: str, number: int) -> Summary:
    document = " ".join(texts_of(row, document_field))
    summaries = tuple(text for text in texts_of(row, summary_field) if text.strip())
    for field, empty in ((document_field, not document.strip()), (summary_field, not summaries)):
        if empty:
            raise MalformedLineError(f"field {field!r} is blank")
    return Summary(str(row.get("id", number)), document, summaries)
