"""Plain text for language models and pretraining."""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..errors import UserError
from .files import SKIP_ADVICE, MalformedLineError, cached_folder, fingerprint, json_object, read_lines, texts_of
from .hub import HubDataset

# The field with the text: plain corpora, CNN/DailyMail, SciTLDR, XSum.
DOCUMENT_FIELDS = ("text", "article", "source", "document")
DOCUMENT_ENDINGS = (".txt", ".jsonl", ".json")


@dataclass(frozen=True, eq=False)
class Corpus:
    """The texts of a split."""

    name: str
    texts: list[str]
    # The number of the first text, in messages.
    first: int = 1
    # Malformed lines that were left out.
    skipped: int = 0
    # The text is its own label.
    has_labels: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.texts)

    def check_text(self, where: str) -> None:
        """Raise UserError if there is no text."""
        if not any(map(str.strip, self.texts)):
            raise UserError(f"{where}: there is no text; expected at least one line of text")

    def columns(self) -> dict[str, Sequence[str]]:
        """The lines whose digests identify the text."""
        return {"sha256": self.texts}

    def fingerprint(self) -> dict[str, str | int]:
        """Identifies the text that a run reads."""
        return {"split": self.name, "texts": len(self), "sha256": fingerprint(self.texts)}


def read_texts(
    paths: Sequence[Path], json_fields: Sequence[str] = (), skip_bad_lines: bool = False
) -> Iterator[str | None]:
    """Yield the lines of files, gzip or not.

    With `json_fields`, files other than .txt have JSON lines: a text is the first of these fields that a line has; a
    list of texts is joined by spaces, and blank lines are skipped. Malformed lines are an error, or None.
    """
    for path in paths:
        if not json_fields or path.name.removesuffix(".gz").endswith(".txt"):
            yield from read_lines(path)
            continue
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip():
                continue
            try:
                row = json_object(line)
                field = next((name for name in json_fields if name in row), None)
                if field is None:
                    raise MalformedLineError(
                        f"no field {' or '.join(json_fields)}; the fields are: {', '.join(row) or 'none'}; set the "
                        "field with --set text_field=…"
                    )
                yield " ".join(texts_of(row, field)).strip()
            except MalformedLineError as error:
                if not skip_bad_lines:
                    raise UserError(f"{path}, line {number}: {error}; {SKIP_ADVICE}") from None
                yield None


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
