"""Plain text for language models and pretraining: in memory, or read as needed, with its tokens memory-mapped.

The tokens of a corpus that is larger than the memory are written once into an Arrow table in the cache of `datasets`
(HF_DATASETS_CACHE); later runs with the same text and tokenizer find it there.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedTokenizerFast

from ..errors import UserError, require
from .files import MalformedLineError, cached_folder, fingerprint, json_object, read_lines, texts_of
from .hub import HubDataset, import_datasets
from .tokenizer import Tokens, encode

# The field with the text: plain corpora, CNN/DailyMail, SciTLDR, XSum.
DOCUMENT_FIELDS = ("text", "article", "source", "document")
DOCUMENT_ENDINGS = (".txt", ".jsonl", ".json")
# Characters to encode at once: the tokenizer needs many times the memory of the text.
_CHARACTERS = 2**20
# The part of a streamed corpus that a tokenizer is trained on.
_VOCABULARY_CHARACTERS = 2 * 10**8


@dataclass(frozen=True, eq=False)
class Corpus:
    """The texts of a split, which can be iterated any number of times, their number and `files.fingerprint`."""

    name: str
    texts: Iterable[str]
    count: int
    sha256: str
    stream: bool = False
    # The text is its own label.
    has_labels: ClassVar[bool] = True

    def sample(self) -> Iterable[str]:
        """The texts that a tokenizer is trained on: all, or the first of a streamed corpus."""
        return _first_texts(self.texts, _VOCABULARY_CHARACTERS) if self.stream else self.texts

    def __len__(self) -> int:
        return self.count

    def fingerprint(self) -> dict[str, str | int]:
        """Identifies the text that a run reads."""
        return {"split": self.name, "texts": self.count, "sha256": self.sha256}


@dataclass(frozen=True)
class Texts:
    """Texts that are read anew in every iteration."""

    read: Callable[[], Iterable[str]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())


def read_corpus(name: str, texts: Iterable[str], stream: bool = False) -> Corpus:
    """Read texts into memory; with `stream` once for their digest, and again whenever they are needed."""
    if not stream:
        texts = list(texts)
    digest, count, has_text = hashlib.sha256(), 0, False
    for text in texts:
        digest.update(f"\n{text}".encode() if count else text.encode())
        count += 1
        has_text = has_text or bool(text.strip())
    if not has_text:
        raise UserError(f"{name}: there is no text; expected at least one line of text")
    return Corpus(name, texts, count, digest.hexdigest(), stream)


def read_texts(paths: Sequence[Path], json_fields: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of files, gzip or not.

    With `json_fields`, files other than .txt have JSON lines: a text is the first of these fields that a line has; a
    list of texts is joined by spaces, and blank lines are skipped.
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
                raise UserError(f"{path}, line {number}: {error}") from None


def hub_texts(
    source: HubDataset, split: str, column: str, stream: bool = False, limit: int | None = None
) -> Iterable[str]:
    """The texts in a column of a data set on the hub; with `stream` in a memory-mapped table, else in a list."""

    def rows() -> Iterator[dict[str, str]]:
        for number, row in enumerate(islice(source.rows(split, [column], stream), limit), start=1):
            text = row.get(column)
            if not isinstance(text, str):
                kind = type(text).__name__
                raise UserError(f"{source}, row {number}: column {column!r} has a {kind}; expected text")
            yield {"text": text.removesuffix("\n")}

    if not stream:
        return [row["text"] for row in rows()]
    key = [source.name, source.subset, source.revision, split, column, limit]
    texts: Iterable[str] = _cached_table("texts", key, rows)["text"]
    return texts


def _first_texts(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Yield texts until they have this many characters."""
    for text in texts:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


@dataclass(frozen=True, eq=False)
class TokenStore:
    """The ids of all texts of a corpus as `encode` gives them; text i is tokens[offsets[i] : offsets[i + 1]].

    The tokens are a `pyarrow.ChunkedArray`, which may be memory-mapped.
    """

    tokens: Any
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def ids(self, start: int, size: int) -> Tokens:
        """A copy of up to `size` tokens from position `start`."""
        return self.tokens[start : start + size].to_numpy().astype(np.int32)

    def lengths(self) -> np.ndarray:
        """(texts,) the number of tokens of each text."""
        return np.diff(self.offsets)

    @classmethod
    def of(cls, corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> TokenStore:
        """The tokens of a corpus, in memory, or memory-mapped if it is streamed."""
        pyarrow = require("pyarrow", "train", "text for language models")
        read = partial(_encoded, corpus.texts, tokenizer)
        if corpus.stream:
            settings = json.loads(tokenizer.backend_tokenizer.to_str())
            # `encode` turns these two off.
            del settings["truncation"], settings["padding"]
            # A row is a batch of texts, so only a few rows are held in memory.
            table = _cached_table("tokens", [settings, corpus.sha256], read, rows_in_memory=16).data
            tokens, lengths = ([part.flatten() for part in table.column(name).chunks] for name in ("tokens", "lengths"))
        else:
            rows = list(read())
            tokens, lengths = ([row[name] for row in rows] for name in ("tokens", "lengths"))
        offsets = np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64)
        return cls(pyarrow.chunked_array(tokens), offsets)


def _cached_table(name: str, key: Any, rows: Callable[[], Iterator[Any]], rows_in_memory: int = 1000) -> Any:
    """A memory-mapped table of `datasets`, written from `rows` if the cache has none for `name` and `key`."""
    datasets = import_datasets("stream=true")
    name = f"{name}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}"
    try:
        return datasets.Dataset.from_generator(rows, fingerprint=name, writer_batch_size=rows_in_memory)
    except (datasets.exceptions.DatasetGenerationError, OSError, ValueError) as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise UserError(
            f"{datasets.config.HF_DATASETS_CACHE}: cannot read or write {name} ({error.__cause__ or error}); delete it "
            "to write it again, or set HF_DATASETS_CACHE to a folder with enough space"
        ) from error


def _encoded(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> Iterator[dict[str, np.ndarray]]:
    """The joined ids of a batch of texts, and the number of ids of each text."""
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    remaining = iter(texts)
    while batch := list(_first_texts(remaining, _CHARACTERS)):
        rows = encode(tokenizer, batch)
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        yield {"tokens": np.concatenate(rows).astype(dtype), "lengths": lengths}


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
