"""Reading files of one record per line, finding the files of a split, and folders in the user's cache."""

import gzip
import io
from pathlib import Path
from typing import Any

import pytest

from synthesizer_lab.data.files import (
    MalformedLineError,
    cached_folder,
    decode_lines,
    find_split,
    json_object,
    matching_files,
    numbered_lines,
    split_files,
)
from synthesizer_lab.errors import UserError


def test_only_newlines_end_a_line() -> None:
    content = io.BytesIO("\ufeffa\u2028b\x0bc\r\nd\re\n\nf".encode())
    assert [*decode_lines(content, "f")] == ["a\u2028b\x0bc", "d\re", "", "f"]


@pytest.mark.parametrize(
    ("name", "content", "fact"),
    [
        ("none.txt", None, "no such file"),
        ("plain.gz", b"not compressed", "gzip"),
        ("cut.gz", gzip.compress(b"some text that is long enough to be cut" * 9, mtime=0)[:-12], "gzip"),
        ("latin.txt", b"caf\xc3\xa9\ncaf\xe9\n", "line 2: byte 0xe9 at position 4"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, content: bytes | None, fact: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}.*{fact}"):
        [*numbered_lines(tmp_path / name)]


@pytest.mark.parametrize(("line", "fact"), [("{", "JSON"), ("[1]", "list"), (r'{"a": "x \ud800 y"}', "surrogates")])
def test_lines_that_are_not_json_objects_are_malformed(line: str, fact: str) -> None:
    with pytest.raises(MalformedLineError, match=fact):
        json_object(line)


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def _names(data: Path, split: str, *endings: str) -> list[str]:
    return [path.name for path in split_files(data, split, endings or (".txt",), several=True)]


def test_split_files_are_found_by_alias_prefix_and_ending(tmp_path: Path) -> None:
    _touch(tmp_path, "train_news.txt", "train-2.txt.gz", "training.txt", "dev.txt", "dev2.txt", "test.jsonl", "test.md")
    assert _names(tmp_path, "train") == ["train-2.txt.gz", "train_news.txt"]
    assert _names(tmp_path, "valid") == ["dev.txt"]
    assert _names(tmp_path, "dev2") == ["dev2.txt"]
    assert _names(tmp_path, "test", ".txt", ".jsonl") == ["test.jsonl"]
    assert split_files(tmp_path, "valid", (".txt",), several=False) == [tmp_path / "dev.txt"]
    with pytest.raises(UserError, match=r"train-2\.txt\.gz, train_news\.txt"):
        split_files(tmp_path, "train", (".txt",), several=False)
    _touch(tmp_path, "train-2.txt")
    with pytest.raises(UserError, match=r"train-2\.txt and train-2\.txt\.gz"):
        split_files(tmp_path, "train", (".txt",), several=True)


def test_missing_files_are_listed(tmp_path: Path) -> None:
    _touch(tmp_path, "valid.jsonl")
    with pytest.raises(UserError, match=r"train\{\.jsonl \| \.json\}.*valid\.jsonl"):
        split_files(tmp_path, "train", (".jsonl", ".json"), several=True)
    with pytest.raises(UserError, match="nowhere"):
        split_files(tmp_path / "nowhere", "valid", (".jsonl",), several=True)
    for split, names in (("test_a", r"test_a\.txt"), ("train", r"train\.txt and valid\.txt")):
        with pytest.raises(UserError, match=f"got a file; expected a folder with {names}$"):
            split_files(tmp_path / "valid.jsonl", split, (".txt",), several=True)


def test_parallel_files_are_found_by_alias_and_prefix(tmp_path: Path) -> None:
    _touch(tmp_path, "val.en", "val.de.gz", "test_2016.en", "test_2016.de", "train.en")
    assert find_split(tmp_path, "valid", ("en", "de")) == ("val", tmp_path / "val.en", tmp_path / "val.de.gz")
    assert find_split(tmp_path, "test", ("en", "de"))[0] == "test_2016"
    assert find_split(tmp_path, "test_2016", ("en", "de"))[0] == "test_2016"
    with pytest.raises(UserError, match=r"no file train\.de; the files there are: .*train\.en, val\.de\.gz"):
        find_split(tmp_path, "train", ("en", "de"))
    _touch(tmp_path, "test_2017.en", "test_2017.de")
    with pytest.raises(UserError, match=r"test_2016\.en, test_2017\.en"):
        find_split(tmp_path, "test", ("en", "de"))


@pytest.mark.parametrize(
    ("path", "patterns", "found"),
    [
        ("", "wiki.*", ["wiki.tokens"]),
        # In the order of the patterns, each file once.
        ("", ["b*.txt", "[ab].txt"], ["b.txt", "a.txt"]),
        ("", ["a.txt", "c*"], r"'c\*'.*a\.txt, b\.txt"),
        ("none", "a.txt", "none"),
    ],
)
def test_files_by_pattern(tmp_path: Path, path: str, patterns: Any, found: list[str] | str) -> None:
    _touch(tmp_path, "wiki.tokens", "b.txt", "a.txt")
    if isinstance(found, str):
        with pytest.raises(UserError, match=found):
            matching_files(tmp_path / path, patterns)
    else:
        assert matching_files(tmp_path / path, patterns) == [tmp_path / name for name in found]


def test_a_cached_folder_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cached_folder("name", lambda stage: (stage / "file").write_text("text") and None)
    assert (folder / "file").read_text() == "text"
    assert cached_folder("name", lambda stage: pytest.fail("written again")) == folder

    def fail(stage: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(UserError, match=r"disk full.*XDG_CACHE_HOME"):
        cached_folder("other", fail)
    assert [path.name for path in folder.parent.iterdir() if path.suffix != ".lock"] == ["name"]
