"""Which files of a folder are a split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from .text import SPLIT_ALIASES

__all__ = ["ANY", "split_file", "split_files"]

# Names may end with anything.
ANY = ("",)


def split_files(data: Path, split: str, endings: Sequence[str], required: bool = True) -> list[Path]:
    """The files of a split in the folder `data`, sorted: the one called after it, else all whose names begin with it.

    "valid" is also val, validation and dev. What follows the beginning has to be no letter: "train" finds
    train_news.txt and train-00001.txt, not training.txt.

    Args:
        endings: of the names, or `ANY`; a file may also be packed, and end with .gz.
        required: that there is none is an error.

    Raises:
        UserError: `data` is no folder, or has no such file; the message lists what is there. Or a file is there both
            packed and not.
    """
    if data.is_file():
        raise UserError(f"{data}: a file; expected the folder with the files of the data")
    if not data.is_dir():
        raise UserError(f"{data}: no such folder of data; expected one with the files of the task")
    stems = {path: _stem(path.name, endings) for path in sorted(data.iterdir()) if path.is_file()}
    for name in SPLIT_ALIASES.get(split, (split,)):
        exact = [path for path, stem in stems.items() if stem == name]
        begun = [path for path, stem in stems.items() if stem.startswith(name) and not stem[len(name) :][:1].isalpha()]
        if found := exact or begun:
            _refuse_twice(found)
            return found
    if not required:
        return []
    there = ", ".join(path.name for path, stem in stems.items() if stem) or "none"
    raise UserError(f"{data}: no file {split}{{{' | '.join(endings)}}}; the files there are: {there}")


def _refuse_twice(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.suffix == ".gz" and path.with_suffix("") in paths:
            raise UserError(f"{path.parent}: both {path.stem} and {path.name} are there; expected one of them")


def split_file(data: Path, split: str, endings: Sequence[str]) -> Path:
    """The one file of a split; otherwise as `split_files`.

    Raises:
        UserError: there are several.
    """
    paths = split_files(data, split, endings)
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise UserError(f"{data}: several files are split {split!r}: {names}; expected one of them")
    return paths[0]


def _stem(name: str, endings: Sequence[str]) -> str:
    """`name` without its ending; "" for one that has none of them."""
    name = name.removesuffix(".gz")
    return next((name.removesuffix(ending) for ending in endings if name.endswith(ending)), "")
