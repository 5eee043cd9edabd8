"""Documents of a split: lines of text files, and a field of JSON lines, in as many files as there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .corpus import Lines
from .lines import MalformedLineError, json_object, texts_of

__all__ = ["DOCUMENT_ENDINGS", "KNOWN_FIELDS", "DocumentFiles"]

DOCUMENT_ENDINGS = (".txt", ".jsonl", ".json")
# What the documents of data sets are called: plain corpora, CNN/DailyMail, SciTLDR, XSum.
KNOWN_FIELDS = ("text", "article", "source", "document")


@dataclass(frozen=True)
class DocumentFiles:
    """The documents of files, packed or not, read whenever they are gone through; none is kept, blank ones left out.

    A text file has a document a line. JSON lines have one in a field; one that is a list is joined by spaces.

    Args:
        paths: one file after the other.
        field: of JSON lines; by default the first of `KNOWN_FIELDS` that a line has.

    Raises:
        UserError: while it is gone through: a file cannot be read, or a line is malformed.
    """

    paths: Sequence[Path]
    field: str | None = None

    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            is_text = path.name.removesuffix(".gz").endswith(".txt")
            for number, line in enumerate(Lines([path]), start=1):
                if not line.strip():
                    continue
                if text := line if is_text else self._document(path, number, line):
                    yield text

    def _document(self, path: Path, number: int, line: str) -> str:
        try:
            row = json_object(line)
            field = self.field or next((name for name in KNOWN_FIELDS if name in row), None)
            if field is None:
                raise MalformedLineError(
                    f"no field {', '.join(KNOWN_FIELDS)}; name the one with the text with text_field; the fields are: "
                    f"{', '.join(row) or 'none'}"
                )
            return " ".join(texts_of(row, field)).strip()
        except MalformedLineError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
