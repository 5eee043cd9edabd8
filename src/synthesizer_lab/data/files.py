"""Find the files of a split, read files of one record per line (gzip or not), and keep generated data in a cache.

Messages name the file and the line. The parsers of `datasets` are not used for local files: its text reader also splits
lines at a lone carriage return, its CSV and JSON readers guess types ("01" becomes 1, "NA" becomes null), and none of
them gives the line of a bad record.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import json
import math
import os
import platform
import sys
import sysconfig
import textwrap
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from glob import glob
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from synthetic_attention.validation import did_you_mean

from ..errors import NoSplitError, UserError, damage_reported
from ..staging import lock_file, staged

_T = TypeVar("_T")
# Raised when something is cached in another form.
_CACHE_VERSION = 7
# Data sets have several names for the validation split.
_VALID = ("valid", "val", "validation", "dev")


class MalformedLineError(ValueError):
    """A line that does not follow its format; the message says why."""


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Decode lines of UTF-8, without line ends and byte order mark. Only newlines end a line, as in `wc -l`."""
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        try:
            yield content.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: byte 0x{content[error.start]:02x} at position {error.start + 1} is not UTF-8; "
                "convert the file to UTF-8"
            ) from None


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, decompressed if its name ends with .gz. The file may be empty."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        with io.BufferedReader(gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
            yield from decode_lines(file, str(path))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a complete gzip file ({error}); decompress it, or download it again") from None


def parallel_lines(first: Path, second: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of two files in pairs."""
    for left, right in zip_longest(read_lines(first), read_lines(second)):
        if left is None or right is None:
            counts = [sum(1 for _ in read_lines(path)) for path in (first, second)]
            raise UserError(
                f"{first} has {counts[0]} lines and {second} has {counts[1]}; "
                "line i of one must translate line i of the other"
            )
        yield left, right


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of every line that is not blank."""
    return ((number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip())


def read_rows(
    path: Path, header: Sequence[str] | None = None, columns: Sequence[str] = ()
) -> tuple[Iterator[tuple[int, Any]], Callable[..., Any]]:
    """The numbered rows of a file, and what decodes one, or raises MalformedLineError.

    Rows of CSV, TSV and JSON lines become objects with named fields; other files have lines, blank ones too. `header`
    has the names of the columns of a table, () for numbers from 1; by default these are in its first row, which must
    have `columns`.
    """
    ending = Path(path.name.removesuffix(".gz")).suffix
    if ending in (".json", ".jsonl"):
        return numbered_lines(path), json_object
    if ending not in (".csv", ".tsv"):
        return enumerate(read_lines(path), start=1), str
    if ending == ".csv":
        rows = _csv_rows(path)
    else:
        # In TSV quotes are text.
        rows = ((number, line.split("\t")) for number, line in numbered_lines(path))
    names = [name.strip() for name in next(rows, (0, []))[1]] if header is None else header
    several = {name for name in names if names.count(name) > 1}
    for name in columns if names else ():
        if name in several:
            raise UserError(f"{path}: several columns are called {name!r}; rename them")
        if name not in names:
            advice = did_you_mean(name, names)
            raise UserError(f"{path}: no column {name!r}; its columns are: {listed(names)}{advice}")

    def decode(row: list[str]) -> dict[Any, str]:
        if names and len(row) != len(names):
            raise MalformedLineError(f"got {len(row)} columns; expected {len(names)}: {listed(names)}")
        pairs = zip(names or range(1, len(row) + 1), row, strict=True)
        return {name: value for name, value in pairs if name not in several}

    return rows, decode


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, with the numbers of their first lines; quotes are as in RFC 4180."""
    # The default limit is 131,072 characters.
    csv.field_size_limit(sys.maxsize)
    reader, number = csv.reader((f"{line}\n" for line in read_lines(path)), strict=True), 1
    try:
        for row in reader:
            if any(value.strip() for value in row):
                yield number, row
            number = reader.line_num + 1
    except csv.Error as error:
        advice = "expected CSV, with quotes doubled inside quotes; correct it, --skip-bad-lines cannot skip it"
        raise UserError(f"{path}, line {number}: {error}; {advice}") from None


def json_object(line: str) -> dict[str, Any]:
    """Parse a line that holds one JSON object."""
    try:
        value = json.loads(line)
        if "\\ud" in line or "\\uD" in line:
            # Half of a surrogate pair is no character.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise MalformedLineError(f"not JSON ({error}); expected one object a line") from None
    if not isinstance(value, dict):
        raise MalformedLineError(f"got a JSON {type(value).__name__}; expected an object with named fields")
    return value


def texts_of(row: Mapping[str, Any], *fields: str, option: str = "") -> list[str]:
    """The text, or list of texts, in the first of `fields` that a JSON object has; `option` sets the field."""
    field = next((field for field in fields if field in row), None)
    if field is None:
        known = f"{listed(row) or 'none'}{option and f' (--set {option}=…)'}"
        raise MalformedLineError(f"no field {' or '.join(map(repr, fields))}; the fields are: {known}")
    value = row[field]
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            raise MalformedLineError(f"field {field!r}: got {type(text).__name__}; expected text, or a list of texts")
    return texts


def count_characters(record: Any) -> int:
    """The characters of a text, or of all texts in a tuple or list."""
    if isinstance(record, str):
        return len(record)
    return sum(map(count_characters, record)) if isinstance(record, tuple | list) else 0


def chunks(records: Iterable[_T], characters: int) -> Iterator[list[_T]]:
    """Neighboring records with about so many characters."""
    chunk, size = list[_T](), 0
    for record in records:
        chunk.append(record)
        size += count_characters(record)
        if size >= characters:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def listed(values: Iterable[str]) -> str:
    """The first 300 characters of the values."""
    return textwrap.shorten(", ".join(values), 300, placeholder=" …")


def as_number(text: str) -> float | None:
    """The finite number that a text contains, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def fingerprints(parts: Iterable[Mapping[str, Iterable[str]]]) -> dict[str, str]:
    """SHA-256 of each column of lines joined by newlines; the columns come in parts.

    It does not depend on the file's place, line ends and compression.
    """
    digests: dict[str, Any] = {}
    for part in parts:
        for name, lines in part.items():
            text = "\n".join(lines).encode()
            if name in digests:
                digests[name].update(b"\n" + text)
            else:
                digests[name] = hashlib.sha256(text)
    return {name: digest.hexdigest() for name, digest in digests.items()}


def named_split(split: str) -> str:
    """Our name of a split: "valid" for "dev", "val" and "validation"."""
    return "valid" if split in _VALID else split


def check_folder(data: Path, *names: str) -> None:
    """Raise UserError if `data` is not a folder; the message says that these files are expected there."""
    if data.is_file():
        files = " and ".join(names)
        raise UserError(f"{data}: got a file; expected a folder{files and f' with {files}'}")
    if not data.is_dir():
        raise UserError(f"{data}: no such folder or file; expected the data")


def split_files(data: Path, split: str, endings: Sequence[str], several: bool) -> list[Path]:
    """The files of a split, sorted: the file with exactly its name, else all files whose names start with it.

    "valid" also finds val, validation and dev. No letter may follow the name: "train" finds train_news.txt and
    train-00001.txt, not training.txt. The names have one of `endings`, and may also end with .gz.
    """
    any_ending = endings[0] if len(endings) == 1 else f"{{{' | '.join(endings)}}}"
    splits = ("train", "valid") if named_split(split) in ("train", "valid") else (split,)
    check_folder(data, *(f"{each}{any_ending}" for each in splits))
    stems = {}
    for path in sorted(data.iterdir()):
        name = path.name.removesuffix(".gz")
        if path.is_file() and (ending := next(filter(name.endswith, endings), None)):
            stems[path] = name.removesuffix(ending)
    for name in _VALID if split == "valid" else (split,):
        found = [path for path, stem in stems.items() if stem.startswith(name) and not stem[len(name) :][:1].isalpha()]
        if paths := [path for path in found if stems[path] == name] or found:
            for path in paths:
                if path.suffix == ".gz" and path.with_suffix("") in paths:
                    raise UserError(f"{data}: found both {path.stem} and {path.name}; expected one of them")
            if len(paths) > 1 and not several:
                names = ", ".join(path.name for path in paths)
                raise UserError(f"{data}: several files for split {split!r}: {names}; expected one")
            return paths
    raise _no_file(data, f"{split}{any_ending}")


def find_split(folder: Path, split: str, languages: tuple[str, str]) -> tuple[str, Path, Path]:
    """The stem and the paths of the parallel files {stem}.{language} of a split, found like `split_files`."""
    first, second = (split_files(folder, split, [f".{language}"], several=False)[0] for language in languages)
    names = zip((first, second), languages, strict=True)
    stems = [path.name.removesuffix(".gz").removesuffix(f".{language}") for path, language in names]
    if stems[0] != stems[1]:
        raise UserError(f"{folder}: found {first.name} and {second.name} for split {split!r}; expected the same name")
    return stems[0], first, second


def matching_files(data: Path, patterns: str | Sequence[str]) -> list[Path]:
    """The files in a folder that match file names or glob patterns, in the order of these."""
    check_folder(data)
    found: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        # Path.glob refuses absolute patterns.
        paths = [data / name for name in sorted(glob(pattern, root_dir=data)) if (data / name).is_file()]  # noqa: PTH207
        if not paths:
            raise _no_file(data, repr(pattern))
        found += paths
    return list(dict.fromkeys(found))


def cached_folder(name: str, write: Callable[[Path], None]) -> Path:
    """The folder `name` in the user's cache ($XDG_CACHE_HOME or ~/.cache); `write` fills it if it does not exist.

    Other processes wait meanwhile; on a file system without locks each one fills it, and the first to finish is used.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "synthetic-attention" / name
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock, partly = folder.with_name(f"{name}.lock"), f".partial-{name}-"
        with lock_file(lock), staged(folder.parent, partly) as stage:
            if not folder.is_dir():
                write(stage)
                stage.rename(folder)
    except OSError as error:
        # Another process may have been faster.
        if not folder.is_dir():
            raise UserError(f"{error}; set XDG_CACHE_HOME to a writable folder with enough space") from error
    return folder


def read_cached(kind: str, key: Any, write: Callable[[Path], None], read: Callable[[Path], _T]) -> _T:
    """What `read` finds in the `cached_folder` for a key that JSON can hold; UserError if the folder is damaged."""
    digest = hashlib.sha256(json.dumps([_CACHE_VERSION, key]).encode()).hexdigest()
    folder = cached_folder(f"{kind}-{digest[:24]}", write)
    with damage_reported(f"{folder} (delete it to write it again)"):
        return read(folder)


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


def _no_file(folder: Path, name: str) -> NoSplitError:
    others = listed(sorted(path.name for path in folder.glob("*") if path.is_file())) or "none"
    return NoSplitError(f"{folder}: no file {name}; the files there are: {others}")
