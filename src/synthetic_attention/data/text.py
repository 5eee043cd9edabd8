"""Read text, a sentence a line, and refuse what cannot be read with the file and the line."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..errors import UserError

__all__ = ["SPLIT_ALIASES", "decode_lines", "find_split", "fingerprint", "named_split", "read_lines"]

# Data sets disagree on the name of the split that is validated on.
SPLIT_ALIASES = {"valid": ("valid", "val", "validation", "dev")}


def decode_lines(content: bytes, name: str, first_line: int = 1) -> list[str]:
    """Lines of UTF-8 `content`, without their ends; only newlines end a line, as `wc -l` counts them.

    Args:
        content: whole lines of a file.
        name: what messages call the file.
        first_line: the number of the line that `content` begins with.

    Raises:
        UserError: a byte is not UTF-8; the message has `name` and the number of the line.
    """
    if first_line == 1:
        content = content.removeprefix(b"\xef\xbb\xbf")
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    decoded = []
    for number, line in enumerate(lines, start=first_line):
        try:
            decoded.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: byte 0x{line[error.start]:02x} at position {error.start + 1} is not UTF-8; "
                "convert it to UTF-8"
            ) from None
    return decoded


def read_lines(path: Path) -> list[str]:
    """Lines of a UTF-8 file that has some text.

    Raises:
        UserError: the file is missing, a folder, without any text, or not UTF-8.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    lines = decode_lines(path.read_bytes(), str(path))
    if not any(line.strip() for line in lines):
        raise UserError(f"{path}: the file is empty")
    return lines


def find_split(folder: Path, split: str, languages: tuple[str, str]) -> str:
    """The stem under which both languages of a split lie in `folder`.

    "valid" also finds val, validation and dev; a name that no file has finds the one that begins with it
    ("test" finds test_2016_flickr).

    Raises:
        UserError: the folder or a file is missing, or several splits begin with the name.
    """
    if folder.is_file():
        raise UserError(f"{folder}: a file; expected the folder with the files of the data")
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of data; expected one with the files of the task")
    stems = [{path.name.removesuffix(f".{lang}") for path in folder.glob(f"*.{lang}")} for lang in languages]
    either, both = sorted(stems[0] | stems[1]), sorted(stems[0] & stems[1])
    for alias in SPLIT_ALIASES.get(split, (split,)):
        if alias in both:
            return alias
        if alias in either:
            missing = languages[0] if alias in stems[1] else languages[1]
            raise UserError(f"{folder / alias}.{missing}: no such file, though the other language is there")
    starting = [stem for stem in both if stem.startswith(split)]
    if len(starting) == 1:
        return starting[0]
    names = " | ".join(f".{lang}" for lang in languages)
    if starting:
        raise UserError(f"{folder}: several splits begin with {split!r}; choose one of: {', '.join(starting)}")
    raise UserError(f"{folder}: no files {split}{{{names}}}; the splits there are: {', '.join(both) or 'none'}")


def named_split(split: str) -> str:
    """Our name of a split that is called by another: "dev", "val" and "validation" are "valid"."""
    return next((name for name, aliases in SPLIT_ALIASES.items() if split in aliases), split)


def fingerprint(lines: list[str]) -> str:
    """SHA-256 of the text, the same wherever the file lies and however its lines end."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
