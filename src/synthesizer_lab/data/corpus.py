"""Plain text for language models and pretraining."""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .files import (
    MalformedLineError,
    cached_folder,
    count_skipped,
    fingerprint,
    json_object,
    parse_lines,
    read_lines,
    texts_of,
)
from .hub import HubDataset
from .records import Split

# The field with the text: plain corpora, CNN/DailyMail, SciTLDR, XSum.
DOCUMENT_FIELDS = ("text", "article", "source", "document")
DOCUMENT_ENDINGS = (".txt", ".jsonl", ".json")


@dataclass(frozen=True, eq=False)
class Corpus(Split):
    """The lines or documents of a split; `first` is the number of the first in messages, `skipped` of malformed ones.

    The text is its own label.
    """

    texts: list[str]
    first: int = 1
    skipped: int = 0

    @classmethod
    def of(cls, name: str, rows: Iterable[str | None], first: int = 1) -> Corpus:
        """From the lines of a reader, of which None is malformed."""
        kept, skipped = count_skipped(rows)
        return cls(name, kept, first, skipped)

    def __len__(self) -> int:
        return len(self.texts)

    def all_texts(self) -> list[str]:
        """The lines."""
        return self.texts

    def columns(self) -> dict[str, Sequence[str]]:
        """The lines whose digests identify the text."""
        return {"sha256": self.texts}


def check_text(lines: Iterable[str | None], where: str) -> Iterator[str | None]:
    """The same lines; UserError at the end if all are blank."""
    found = False
    for line in lines:
        found = found or bool(line and line.strip())
        yield line
    if not found:
        raise UserError(f"{where}: there is no text; expected at least one line of text")


def read_texts(
    paths: Sequence[Path], json_fields: Sequence[str] = (), skip_bad_lines: bool = False
) -> Iterator[str | None]:
    """Yield the lines of files, gzip or not.

    With `json_fields`, files other than .txt have JSON lines: a text is the first of these fields that a line has; a
    list of texts is joined by spaces, and blank lines are skipped. Malformed lines are an error, or None.
    """

    def parse(_: int, line: str) -> list[str]:
        row = json_object(line)
        field = next((name for name in json_fields if name in row), None)
        if field is None:
            raise MalformedLineError(
                f"no field {' or '.join(json_fields)}; the fields are: {', '.join(row) or 'none'}; set the field with "
                "--set text_field=…"
            )
        return [" ".join(texts_of(row, field)).strip()]

    for path in paths:
        lines = read_lines(path)
        if json_fields and not path.name.removesuffix(".gz").endswith(".txt"):
            numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
            yield from parse_lines(path, numbered, parse, skip_bad_lines)
        else:
            yield from lines


def hub_texts(source: HubDataset, split: str, column: str, stream: bool = False) -> Iterator[str]:
    """The texts in a column of a data set on the hub."""
    for number, row in enumerate(source.rows(split, [column], stream), start=1):
        text = row.get(column)
        if not isinstance(text, str):
            kind = type(text).__name__
            raise UserError(f"{source}, row {number}: column {column!r} has a {kind}; expected text")
        yield text.removesuffix("\n")


def standard_library_data() -> Path:
    """A folder in the user's cache with {train,valid,test}.txt: the modules at the top of Python's standard library.

    Of every 20 files in alphabetical order the first is in `valid`, the second in `test`.
    """
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [path.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n").rstrip() + "\n\n" for path in files]
    train = [text for number, text in enumerate(texts) if number % 20 > 1]

    def write(folder: Path) -> None:
        for split, parts in {"train": train, "valid": texts[::20], "test": texts[1::20]}.items():
            (folder / f"{split}.txt").write_bytes("".join(parts).encode())

    # Builds of one version differ.
    return cached_folder(f"python-{platform.python_version()}-{fingerprint(texts)[:8]}", write)
