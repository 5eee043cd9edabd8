"""Plain text, a text a line: files of a split, or a column of a data set on the hub, in memory or read as needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..errors import UserError
from .files import split_files
from .hub import HubSet
from .lines import stream_lines
from .text import SPLIT_ALIASES
from .user_cache import made_once

__all__ = ["Corpus", "Lines", "Selected", "corpus_files", "first_texts", "hub_lines", "read_corpus"]

_ENDINGS = (".txt",)


@dataclass(frozen=True, eq=False)
class Corpus:
    """The texts of a split.

    Attributes:
        name: what messages and files call it.
        texts: can be gone through any number of times; a list where they are in memory.
        count: how many there are.
        sha256: of the texts, the same wherever they lie and however their lines end.
    """

    name: str
    texts: Iterable[str]
    count: int
    sha256: str

    def __len__(self) -> int:
        return self.count

    def fingerprint(self) -> dict[str, str | int]:
        """What tells whether two runs read the same text."""
        return {"split": self.name, "texts": self.count, "sha256": self.sha256}


@dataclass(frozen=True)
class Lines:
    """The lines of files, packed with gzip or not, read whenever they are gone through; none of them is kept.

    Args:
        paths: one file after the other.

    Raises:
        UserError: while it is gone through: a file cannot be read, or is not UTF-8.
    """

    paths: Sequence[Path]

    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            yield from stream_lines(path)


@dataclass(frozen=True)
class Selected:
    """Some of `texts`, changed, whenever they are gone through.

    Args:
        keep: which are there.
        change: what is made of each of them.
        limit: the most of them.
    """

    texts: Iterable[str]
    keep: Callable[[str], object] = lambda text: True
    change: Callable[[str], str] = lambda text: text
    limit: int | None = None

    def __iter__(self) -> Iterator[str]:
        return islice((self.change(text) for text in self.texts if self.keep(text)), self.limit)


def read_corpus(name: str, texts: Iterable[str], stream: bool = False) -> Corpus:
    """Read texts: into the memory, or, with `stream`, once to count them and to tell them from others.

    Raises:
        UserError: there are none, or they are blank.
    """
    if not stream:
        texts = list(texts)
    digest, count, has_text = hashlib.sha256(), 0, False
    for text in texts:
        digest.update(f"\n{text}".encode() if count else text.encode())
        count += 1
        has_text = has_text or bool(text.strip())
    if not has_text:
        raise UserError(f"{name}: there is no text in it; expected a line of text at least")
    return Corpus(name, texts, count, digest.hexdigest())


def corpus_files(data: Path, split: str, patterns: str | Sequence[str] | None = None) -> list[Path]:
    """The files of a split.

    Args:
        data: a folder, or a file: then that is the training text, or the split that its name begins with.
        patterns: names of the files of the split, where they do not begin with its name; with * and the like, relative
            to the folder.

    Raises:
        UserError: there are none; or `data` is a file that is to be trained on, and called after a split that is not.
    """
    if not data.exists():
        raise UserError(f"{data}: no such file or folder of data")
    if patterns is not None:
        return _matching(data.parent if data.is_file() else data, [patterns] if isinstance(patterns, str) else patterns)
    if data.is_file():
        if _is_called(data, split):
            return [data]
        if split == "train":
            _refuse_held_out(data)
            return [data]
        raise UserError(
            f"{data}: a single file, which is the training text; name the text of split {split!r}"
            + (f" with --set {split}_files=…" if split in ("valid", "test") else "")
        )
    return split_files(data, split, _ENDINGS)


def _is_called(path: Path, split: str) -> bool:
    """Whether the name of a file begins with that of a split, and no letter follows, as `split_files` has it."""
    names = SPLIT_ALIASES.get(split, (split,))
    return any(path.name.startswith(name) and not path.name[len(name) :][:1].isalpha() for name in names)


def _refuse_held_out(path: Path) -> None:
    """Raises UserError: as that split the same text would be scored on that is trained on."""
    for split in ("valid", "test"):
        if _is_called(path, split):
            raise UserError(
                f"{path}: by its name the text of split {split!r}; name the text to train on with --set train_files=…"
            )


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    paths: dict[Path, None] = {}
    for pattern in patterns:
        base = Path(Path(pattern).anchor) if Path(pattern).is_absolute() else folder
        try:
            found = sorted(base.glob(str(Path(pattern).relative_to(base) if base != folder else pattern)))
        except (ValueError, NotImplementedError) as error:
            raise UserError(f"got {pattern!r}; expected the name of a file, or a pattern: {error}") from None
        found = [path for path in found if path.is_file()]
        if not found:
            there = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_file())) or "none"
            raise UserError(f"{folder}: no file {pattern!r}; the files there are: {there}")
        paths.update(dict.fromkeys(found))
    return list(paths)


def hub_lines(source: HubSet, split: str, column: str, stream: bool = False, limit: int | None = None) -> Iterable[str]:
    """The texts of a column of a data set on the hub.

    With `stream` they are fetched once into a file in the user's cache, which later runs find there: a text can then
    be gone through again, and none is kept in memory.

    Raises:
        UserError: they cannot be fetched, or a value of the column is no text.
    """
    if not stream:
        return list(_column(source, split, column, False, limit))
    key = json.dumps([source.name, source.subset, source.revision, split, column, limit])

    def fetch(folder: Path) -> None:
        with (folder / "texts.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(text) + "\n" for text in _column(source, split, column, True, limit))

    folder = made_once(f"hub-{hashlib.sha256(key.encode()).hexdigest()[:24]}", fetch)
    return Selected(Lines([folder / "texts.jsonl"]), change=json.loads)


def _column(source: HubSet, split: str, column: str, stream: bool, limit: int | None) -> Iterator[str]:
    for number, (text,) in enumerate(source.rows(split, [column], stream=stream, limit=limit), start=1):
        if not isinstance(text, str):
            raise UserError(
                f"hub:{source.name}, row {number}: column {column!r} has a {type(text).__name__}; expected text"
            )
        yield text.removesuffix("\n")


def first_texts(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Texts from the beginning, until they have so many characters."""
    for text in texts:
        yield text
        characters -= len(text)
        if characters <= 0:
            return
