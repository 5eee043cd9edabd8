"""Documents and their summaries: JSON lines with named fields, gzip or not, or columns of a data set on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import MalformedLineError, json_object, numbered_lines, parse_lines, texts_of
from .hub import HubDataset

# (document, summary) in CNN/DailyMail, SciTLDR, XSum, arXiv.
KNOWN_FIELDS = (("article", "highlights"), ("source", "target"), ("document", "summary"), ("article", "abstract"))


@dataclass(frozen=True)
class Summary:
    """A document with its reference summaries, whose line breaks end sentences for ROUGE-Lsum."""

    id: str
    document: str
    references: tuple[str, ...]


def read_summaries(
    source: Path | tuple[HubDataset, str],
    document_field: str | None = None,
    summary_field: str | None = None,
    skip_bad_lines: bool = False,
    stream: bool = False,
) -> Iterator[Summary | None]:
    """Read a file of JSON lines, or a split of a data set on the hub, with `stream` as it is downloaded.

    The sentences of a document that is a list are joined by spaces; a summary that is a list has several references.
    The id is the field `id`, else the number of the line. The default fields are the first `KNOWN_FIELDS` that match.
    """

    def parse(number: int, content: str | dict[str, Any]) -> list[Summary]:
        row = json_object(content) if isinstance(content, str) else content
        known = next((pair for pair in KNOWN_FIELDS if row.keys() >= {*pair}), KNOWN_FIELDS[0])
        fields = (document_field or known[0], summary_field or known[1])
        document = " ".join(texts_of(row, fields[0]))
        summaries = tuple(text for text in texts_of(row, fields[1]) if text.strip())
        if not document.strip() or not summaries:
            raise MalformedLineError(f"field {fields[bool(document.strip())]!r} is blank")
        return [Summary(str(row.get("id", number)), document, summaries)]

    if isinstance(source, Path):
        return parse_lines(source, numbered_lines(source), parse, skip_bad_lines)
    data, split = source
    return parse_lines(
        str(data), enumerate(data.rows(split, stream=stream), start=1), parse, skip_bad_lines, unit="row"
    )
