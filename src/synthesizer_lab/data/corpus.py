"""Plain text for language models and pretraining."""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .files import cached_folder, fingerprints
from .records import Split


@dataclass(frozen=True, eq=False)
class Corpus(Split):
    """The lines or documents of a split. The text is its own label."""

    texts: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    def all_texts(self) -> list[str]:
        """The lines."""
        return self.texts

    def columns(self) -> dict[str, Sequence[str]]:
        """The lines whose digests identify the text."""
        return {"sha256": self.texts}


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
    digest = fingerprints([{"text": texts}])["text"]
    return cached_folder(f"python-{platform.python_version()}-{digest[:8]}", write)
