"""A corpus that is on every machine: the source text of Python's standard library, docstrings included.

Of the .py files of the interpreter that runs, those of tests and of installed packages are left out, and those over
100 kB, most of which are tables. The others are put into an order that only their names decide, and taken until they
have 4 MB. Of twenty the first goes to `valid`, the second to `test`, the others to `train`: whole files are held out.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from pathlib import Path

from ..errors import UserError
from .user_cache import made_once

__all__ = ["default_data", "split_files_of"]

_MOST_BYTES, _LARGEST_FILE = 4_000_000, 100_000
_EVERY = 20
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def default_data() -> Path:
    """The folder with train.txt, valid.txt and test.txt; it is made in the user's cache if it is not there.

    Its name has the version of Python and a digest of the text: another version has another folder.

    Raises:
        UserError: there is no standard library to read, or the folder cannot be written.
    """
    root = Path(sysconfig.get_path("stdlib"))
    texts = {split: _joined(root, paths) for split, paths in split_files_of(root).items()}
    digest = hashlib.sha256(b"\0".join(texts.values())).hexdigest()[:12]

    def write(folder: Path) -> None:
        for split, text in texts.items():
            (folder / f"{split}.txt").write_bytes(text)

    return made_once(f"python-{platform.python_version()}-{digest}", write)


def split_files_of(root: Path) -> dict[str, list[Path]]:
    """The chosen files by split, relative to `root`, the folder of the library.

    Raises:
        UserError: there are too few.
    """
    names = [path.relative_to(root) for path in root.rglob("*.py")]
    names = [name for name in names if not _LEFT_OUT & {*name.parts}]
    splits: dict[str, list[Path]] = {"train": [], "valid": [], "test": []}
    chosen = size = 0
    for name in sorted(names, key=lambda name: hashlib.sha256(name.as_posix().encode()).digest()):
        length = (root / name).stat().st_size
        if size >= _MOST_BYTES:
            break
        if not 0 < length <= _LARGEST_FILE:
            continue
        splits[{0: "valid", 1: "test"}.get(chosen % _EVERY, "train")].append(name)
        chosen, size = chosen + 1, size + length
    if chosen <= _EVERY:
        raise UserError(f"{root}: {chosen} files of Python's standard library; expected more; pass --data")
    return splits


def _joined(root: Path, names: list[Path]) -> bytes:
    """The files one after the other, a blank line after each; what is not UTF-8 in them is replaced."""
    texts = [(root / name).read_bytes().decode("utf-8", "replace").replace("\r\n", "\n") for name in names]
    return "".join(f"{text.rstrip()}\n\n" for text in texts).encode()
