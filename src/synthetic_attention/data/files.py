"""Find the files of a split in a folder, and keep generated data in the user's cache."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path

from ..errors import UserError

# Data sets have several names for the validation split.
SPLIT_ALIASES = {"valid": ("valid", "val", "validation", "dev")}


def named_split(split: str) -> str:
    """Our name of a split: "valid" for "dev", "val" and "validation"."""
    return next((name for name, aliases in SPLIT_ALIASES.items() if split in aliases), split)


def split_files(data: Path, split: str, endings: Sequence[str], required: bool = True) -> list[Path]:
    """The files of a split, sorted: the file with exactly its name, else all files whose names start with it.

    "valid" also finds val, validation and dev. No letter may follow the name: "train" finds train_news.txt and
    train-00001.txt, not training.txt. The names have one of `endings`, and may also end with .gz.
    """
    _check_folder(data)
    stems = {path: _stem(path.name, endings) for path in sorted(data.iterdir()) if path.is_file()}
    for name in SPLIT_ALIASES.get(split, (split,)):
        exact = [path for path, stem in stems.items() if stem == name]
        if found := exact or [path for path, stem in stems.items() if _starts_with(stem, name)]:
            for path in found:
                if path.suffix == ".gz" and path.with_suffix("") in found:
                    raise UserError(f"{data}: found both {path.stem} and {path.name}; expected one of them")
            return found
    if not required:
        return []
    ending = endings[0] if len(endings) == 1 else f"{{{' | '.join(endings)}}}"
    raise _no_file(data, f"{split}{ending}")


def split_file(data: Path, split: str, endings: Sequence[str]) -> Path:
    """The only file of a split, found like `split_files`."""
    paths = split_files(data, split, endings)
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise UserError(f"{data}: several files for split {split!r}: {names}; expected one")
    return paths[0]


def find_split(folder: Path, split: str, languages: tuple[str, str]) -> str:
    """The stem of the parallel files {stem}.{language} of a split, which are found like `split_files`."""
    first, second = (
        {path.name.removesuffix(f".{language}") for path in split_files(folder, split, (f".{language}",))}
        for language in languages
    )
    both = sorted(first & second)
    if len(both) != 1:
        names = ", ".join(both or sorted(first | second))
        raise UserError(f"{folder}: expected one split {split!r} with files .{' and .'.join(languages)}; found {names}")
    return both[0]


def corpus_files(data: Path, split: str, patterns: str | Sequence[str] | None = None) -> list[Path]:
    """The text files of a split of a corpus.

    Args:
        data: a folder, or a single file: then it is the split that its name starts with, else the training text.
        patterns: file names or glob patterns, relative to the folder, if the names do not start with the split's.
    """
    if not data.exists():
        raise UserError(f"{data}: no such file or folder")
    if patterns is not None:
        folder = data.parent if data.is_file() else data
        found = [_matching(folder, pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns)]
        return list(dict.fromkeys(path for paths in found for path in paths))
    if data.is_dir():
        return split_files(data, split, (".txt",))
    own = [name for name in ("train", "valid", "test") if _is_named_after(data, name)]
    if _is_named_after(data, split) or (split == "train" and not own):
        return [data]
    if split == "train":
        raise UserError(f"{data}: the name says split {own[0]!r}; set the text to train on with --set train_files=…")
    advice = f"; set the text of split {split!r} with --set {split}_files=…" if split in ("valid", "test") else ""
    raise UserError(f"{data}: a single file, used as the training text{advice}")


def cached_folder(name: str, write: Callable[[Path], None]) -> Path:
    """The folder `name` in the user's cache ($XDG_CACHE_HOME or ~/.cache); `write` fills it if it does not exist.

    It is filled under a temporary name and then renamed, so several processes may call this at once.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "synthetic-attention" / name
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as stage:
            write(Path(stage))
            try:
                Path(stage).rename(folder)
            except OSError:
                # Another process may have been faster.
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise UserError(f"{error}; set XDG_CACHE_HOME to a writable folder with enough space") from error
    return folder


def _check_folder(data: Path) -> None:
    if data.is_file():
        raise UserError(f"{data}: got a file; expected the folder with the data files")
    if not data.is_dir():
        raise UserError(f"{data}: no such folder; expected the folder with the data files")


def _stem(name: str, endings: Sequence[str]) -> str:
    """`name` without .gz and ending; "" if it has none of the endings."""
    name = name.removesuffix(".gz")
    return next((name.removesuffix(ending) for ending in endings if name.endswith(ending)), "")


def _starts_with(text: str, name: str) -> bool:
    return text.startswith(name) and not text[len(name) :][:1].isalpha()


def _is_named_after(path: Path, split: str) -> bool:
    return any(_starts_with(path.name, name) for name in SPLIT_ALIASES.get(split, (split,)))


def _matching(folder: Path, pattern: str) -> list[Path]:
    # Path.glob refuses absolute patterns.
    found = [path for name in sorted(glob(pattern, root_dir=folder)) if (path := folder / name).is_file()]  # noqa: PTH207
    if not found:
        raise _no_file(folder, repr(pattern))
    return found


def _no_file(folder: Path, name: str) -> UserError:
    others = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_file())) or "none"
    return UserError(f"{folder}: no file {name}; the files there are: {others}")
