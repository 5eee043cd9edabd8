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
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from .files import cached_folder
from .hub import HubDataset, import_datasets
from .lines import MalformedLineError, json_object, stream_lines, texts_of
from .tokenizer import Tokens, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# The field with the text: plain corpora, CNN/DailyMail, SciTLDR, XSum.
DOCUMENT_FIELDS = ("text", "article", "source", "document")
DOCUMENT_ENDINGS = (".txt", ".jsonl", ".json")
# Texts and characters to encode at once: the tokenizer needs many times the memory of the text.
_TEXTS, _CHARACTERS = 10_000, 2**20


@dataclass(frozen=True, eq=False)
class Corpus:
    """The texts of a split, which can be iterated any number of times, their number and `lines.fingerprint`."""

    name: str
    texts: Iterable[str]
    count: int
    sha256: str

    @property
    def has_labels(self) -> bool:
        """The text is its own label."""
        return True

    def __len__(self) -> int:
        return self.count

    def fingerprint(self) -> dict[str, str | int]:
        """Identifies the text that a run reads."""
        return {"split": self.name, "texts": self.count, "sha256": self.sha256}


@dataclass(frozen=True)
class TextFiles:
    """The lines of files, gzip or not, read anew in every iteration.

    With `json_fields`, files other than .txt have JSON lines: a text is the first of these fields that a line has; a
    list of texts is joined by spaces, and blank lines are skipped.
    """

    paths: Sequence[Path]
    json_fields: Sequence[str] = ()

    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            if not self.json_fields or path.name.removesuffix(".gz").endswith(".txt"):
                yield from stream_lines(path)
                continue
            for number, line in enumerate(stream_lines(path), start=1):
                if line.strip():
                    try:
                        yield self._document(json_object(line))
                    except MalformedLineError as error:
                        raise UserError(f"{path}, line {number}: {error}") from None

    def _document(self, row: dict[str, Any]) -> str:
        field = next((name for name in self.json_fields if name in row), None)
        if field is None:
            raise MalformedLineError(
                f"no field {', '.join(self.json_fields)}; set the field with the text with --set text_field=…; the "
                f"fields are: {', '.join(row) or 'none'}"
            )
        return " ".join(texts_of(row, field)).strip()


@dataclass(frozen=True)
class SelectedTexts:
    """At most `limit` of the texts that `keep` accepts, each changed by `change`."""

    texts: Iterable[str]
    keep: Callable[[str], object] = lambda text: True
    change: Callable[[str], str] = lambda text: text
    limit: int | None = None

    def __iter__(self) -> Iterator[str]:
        return islice((self.change(text) for text in self.texts if self.keep(text)), self.limit)


def read_corpus(name: str, texts: Iterable[str], stream: bool = False) -> Corpus:
    """Read texts into memory; with `stream` read them once, for their number and digest."""
    if not stream:
        texts = list(texts)
    digest, count, has_text = hashlib.sha256(), 0, False
    for text in texts:
        digest.update(f"\n{text}".encode() if count else text.encode())
        count += 1
        has_text = has_text or bool(text.strip())
    if not has_text:
        raise UserError(f"{name}: there is no text; expected at least one line of text")
    return Corpus(name, texts, count, digest.hexdigest())


def hub_texts(
    source: HubDataset, split: str, column: str, stream: bool = False, limit: int | None = None
) -> Iterable[str]:
    """The texts in a column of a data set on the hub; with `stream` in a memory-mapped table, else in a list."""

    def rows() -> Iterator[dict[str, str]]:
        for number, (text,) in enumerate(source.rows(split, [column], stream=stream, limit=limit), start=1):
            if not isinstance(text, str):
                kind = type(text).__name__
                raise UserError(f"hub:{source.name}, row {number}: column {column!r} has a {kind}; expected text")
            yield {"text": text.removesuffix("\n")}

    if not stream:
        return [row["text"] for row in rows()]
    key = [source.name, source.subset, source.revision, split, column, limit]
    texts: Iterable[str] = _cached_table("texts", key, rows)["text"]
    return texts


def first_texts(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Yield texts until they have this many characters."""
    for text in texts:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


class TokenArray:
    """Token ids in one or more arrays, which may be memory-mapped. A slice is an int32 copy."""

    def __init__(self, chunks: Sequence[np.ndarray]) -> None:
        self._chunks = chunks
        self._ends = np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, part: slice) -> Tokens:
        start, stop, _ = part.indices(len(self))
        index = int(np.searchsorted(self._ends, start, side="right"))
        found = [np.zeros(0, np.int32)]
        while start < stop:
            first = self._ends[index] - len(self._chunks[index])
            found.append(self._chunks[index][start - first : stop - first].astype(np.int32))
            start, index = self._ends[index], index + 1
        return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class TokenStore:
    """The ids of all texts of a corpus as `encode` gives them; text i is tokens[offsets[i] : offsets[i + 1]]."""

    tokens: TokenArray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, text: int) -> Tokens:
        return self.tokens[self.offsets[text] : self.offsets[text + 1]]

    def lengths(self) -> np.ndarray:
        """(texts,) the number of tokens of each text."""
        return np.diff(self.offsets)

    @classmethod
    def in_memory(cls, texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> TokenStore:
        """Encode texts into memory."""
        rows = list(_encoded(texts, tokenizer))
        if not rows:
            raise UserError("got no texts; expected at least one")
        return cls._of([row["tokens"] for row in rows], [row["lengths"] for row in rows])

    @classmethod
    def cached(cls, texts: Iterable[str], tokenizer: PreTrainedTokenizerFast, key: str) -> TokenStore:
        """Encode the texts that `key` identifies into a memory-mapped table, unless the cache of `datasets` has it."""
        parts = json.loads(tokenizer.backend_tokenizer.to_str())
        # `encode` turns these two off.
        settings = {name: part for name, part in parts.items() if name not in ("truncation", "padding")}
        # A row is a batch of texts, so only a few rows are held in memory.
        table = _cached_table("tokens", [settings, key], lambda: _encoded(texts, tokenizer), rows_in_memory=16)
        return cls._of(
            *(
                [chunk.flatten().to_numpy(zero_copy_only=True) for chunk in table.data.column(name).chunks]
                for name in ("tokens", "lengths")
            )
        )

    @classmethod
    def _of(cls, tokens: Sequence[np.ndarray], lengths: Sequence[np.ndarray]) -> TokenStore:
        return cls(TokenArray(tokens), np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64))


def _cached_table(name: str, key: Any, rows: Callable[[], Iterator[Any]], rows_in_memory: int = 1000) -> Any:
    """A memory-mapped table of `datasets`, written from `rows` if the cache has none for `name` and `key`."""
    datasets = import_datasets("stream=true")
    name = f"{name}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}"
    cache = datasets.config.HF_DATASETS_CACHE
    try:
        return datasets.Dataset.from_generator(rows, fingerprint=name, writer_batch_size=rows_in_memory)
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise UserError(f"{cache}: {error.__cause__}; set HF_DATASETS_CACHE to a folder with enough space") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{cache}: cannot read or write {name} ({error}); delete it to write it again") from error


def _encoded(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> Iterator[dict[str, np.ndarray]]:
    """The joined ids of a batch of texts, and the number of ids of each text."""
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    remaining = iter(texts)
    while batch := list(islice(first_texts(remaining, _CHARACTERS), _TEXTS)):
        rows = encode(tokenizer, batch)
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        yield {"tokens": np.concatenate(rows).astype(dtype), "lengths": lengths}


def standard_library_data() -> Path:
    """A folder in the user's cache with {train,valid,test}.txt: the modules at the top of Python's standard library.

    Of every 20 files in alphabetical order the first is in `valid`, the second in `test`.
    """
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    if len(files) <= 20:
        raise UserError(f"found {len(files)} modules of Python's standard library; expected more; pass --data")
    train = [path for number, path in enumerate(files) if number % 20 > 1]
    splits = {"train": train, "valid": files[::20], "test": files[1::20]}
    texts = {split: "".join(f"{_source(path)}\n\n" for path in paths) for split, paths in splits.items()}
    digest = hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()[:12]

    def write(folder: Path) -> None:
        for split, text in texts.items():
            (folder / f"{split}.txt").write_bytes(text.encode())

    return cached_folder(f"python-{platform.python_version()}-{digest}", write)


def _source(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n").rstrip()
