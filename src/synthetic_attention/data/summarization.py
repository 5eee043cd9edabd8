"""Documents and their summaries: JSON lines with named fields, gzip or not, or columns of a data set on the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import MalformedLineError, Parsed, collect, json_object, numbered_lines, texts_of
from .hub import HubDataset

# (document, summary) in CNN/DailyMail, SciTLDR, XSum, arXiv.
KNOWN_FIELDS = (("article", "highlights"), ("source", "target"), ("document", "summary"), ("article", "abstract"))


@dataclass(frozen=True)
class Summary:
    """A document with its reference summaries, whose line breaks end sentences for ROUGE-Lsum."""

    id: str
    document: str
    summaries: tuple[str, ...]


def read_summaries(
    path: Path, document_field: str | None = None, summary_field: str | None = None, skip_bad_lines: bool = False
) -> Parsed[Summary]:
    """Read JSON lines.

    The sentences of a document that is a list are joined by spaces; a summary that is a list has several references.
    The id is the field `id`, else the number of the line. The default fields are the first `KNOWN_FIELDS` that match.
    """

    def parse(number: int, line: str) -> list[Summary]:
        return [_summary(json_object(line), document_field, summary_field, number)]

    return collect(path, numbered_lines(path), parse, skip_bad_lines)


def read_hub_summaries(
    source: HubDataset,
    split: str,
    document_field: str | None = None,
    summary_field: str | None = None,
    skip_bad_lines: bool = False,
) -> Parsed[Summary]:
    """Read a split of a data set on the hub like `read_summaries`."""

    def parse(number: int, row: dict[str, Any]) -> list[Summary]:
        return [_summary(row, document_field, summary_field, number)]

    return collect(f"hub:{source.name}", enumerate(source.rows(split), start=1), parse, skip_bad_lines, unit="row")


def _summary(row: dict[str, Any], document_field: str | None, summary_field: str | None, number: int) -> Summary:
    known = next((pair for pair in KNOWN_FIELDS if row.keys() >= {*pair}), KNOWN_FIELDS[0])
    fields = (document_field or known[0], summary_field or known[1])
    document = " ".join(texts_of(row, fields[0]))
    summaries = tuple(text for text in texts_of(row, fields[1]) if text.strip())
    if not document.strip() or not summaries:
        raise MalformedLineError(f"field {fields[bool(document.strip())]!r} is blank")
    return Summary(str(row.get("id", number)), document, summaries)
