"""Finding the files of a split, and folders in the user's cache."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from synthetic_attention.data.files import cached_folder, corpus_files, find_split, split_file, split_files
from synthetic_attention.errors import UserError


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def _names(data: Path, split: str, *endings: str) -> list[str]:
    return [path.name for path in split_files(data, split, endings or (".txt",))]


def test_split_files_are_found_by_alias_prefix_and_ending(tmp_path: Path) -> None:
    _touch(tmp_path, "train_news.txt", "train-2.txt.gz", "training.txt", "dev.txt", "dev2.txt", "test.jsonl", "test.md")
    assert _names(tmp_path, "train") == ["train-2.txt.gz", "train_news.txt"]
    assert _names(tmp_path, "valid") == ["dev.txt"]
    assert _names(tmp_path, "dev2") == ["dev2.txt"]
    assert _names(tmp_path, "test", ".txt", ".jsonl") == ["test.jsonl"]
    assert split_file(tmp_path, "valid", (".txt",)).name == "dev.txt"
    with pytest.raises(UserError, match=r"train-2\.txt\.gz, train_news\.txt"):
        split_file(tmp_path, "train", (".txt",))


def test_missing_files_are_listed(tmp_path: Path) -> None:
    _touch(tmp_path, "valid.jsonl")
    with pytest.raises(UserError, match=r"train\{\.jsonl \| \.json\}.*valid\.jsonl"):
        split_file(tmp_path, "train", (".jsonl", ".json"))
    for folder in (tmp_path / "valid.jsonl", tmp_path / "nowhere"):
        with pytest.raises(UserError, match=folder.name):
            split_files(folder, "valid", (".jsonl",))
        with pytest.raises(UserError, match=folder.name):
            find_split(folder, "valid", ("en", "de"))


def test_a_file_both_compressed_and_not_raises(tmp_path: Path) -> None:
    _touch(tmp_path, "train-1.txt", "train-1.txt.gz", "train-2.txt.gz")
    with pytest.raises(UserError, match=r"train-1\.txt and train-1\.txt\.gz"):
        split_files(tmp_path, "train", (".txt",))
    (tmp_path / "train-1.txt").unlink()
    assert _names(tmp_path, "train") == ["train-1.txt.gz", "train-2.txt.gz"]


def test_parallel_files_are_found_by_alias_and_prefix(tmp_path: Path) -> None:
    _touch(tmp_path, "val.en", "val.de", "test_2016.en", "test_2016.de", "train.en")
    assert find_split(tmp_path, "valid", ("en", "de")) == "val"
    assert find_split(tmp_path, "test", ("en", "de")) == "test_2016"
    assert find_split(tmp_path, "test_2016", ("en", "de")) == "test_2016"
    with pytest.raises(UserError, match=r"no file train\.de; the files there are: .*train\.en, val\.de"):
        find_split(tmp_path, "train", ("en", "de"))
    with pytest.raises(UserError, match=r"dev2.*test_2016\.en"):
        find_split(tmp_path, "dev2", ("en", "de"))
    _touch(tmp_path, "test_2017.en", "test_2017.de")
    with pytest.raises(UserError, match="test_2016, test_2017"):
        find_split(tmp_path, "test", ("en", "de"))


def test_corpus_files(tmp_path: Path) -> None:
    _touch(tmp_path, "train_news.txt", "valid.txt", "wiki.tokens", "b.txt", "a.txt", "train-2.txt", "values.txt")
    (tmp_path / "test.txt.gz").write_bytes(gzip.compress(b"compressed\n"))

    def names(split: str, *patterns: Any, path: Path = tmp_path) -> list[str]:
        return [path.name for path in corpus_files(path, split, *patterns)]

    assert names("train") == ["train-2.txt", "train_news.txt"]
    assert (names("valid"), names("test")) == (["valid.txt"], ["test.txt.gz"])
    assert names("train", "wiki.*") == ["wiki.tokens"]
    # In the order of the patterns, each file once.
    assert names("train", ["b*.txt", "[ab].txt"]) == ["b.txt", "a.txt"]
    assert names("train", str(tmp_path / "a.t*")) == ["a.txt"]
    # A single file is the training text; the others are given by name, from its folder.
    assert names("train", path=tmp_path / "a.txt") == ["a.txt"]
    assert names("valid", "b.txt", path=tmp_path / "a.txt") == ["b.txt"]
    assert names("valid", path=tmp_path / "valid.txt") == ["valid.txt"]
    # The text of another split is not trained on, unless it is given by name.
    with pytest.raises(UserError, match=r"'valid'.*--set train_files="):
        names("train", path=tmp_path / "valid.txt")
    assert names("train", "valid.txt", path=tmp_path / "valid.txt") == ["valid.txt"]
    assert names("train", path=tmp_path / "values.txt") == ["values.txt"]
    for split, patterns, path, fact in (
        ("valid", (), tmp_path / "values.txt", "--set valid_files="),
        ("valid", (), tmp_path / "a.txt", "--set valid_files="),
        ("train", (["a.txt", "c*"],), tmp_path, r"'c\*'.*a\.txt, b\.txt"),
        ("train", ("a.txt",), tmp_path / "none", "none"),
    ):
        with pytest.raises(UserError, match=fact):
            names(split, *patterns, path=path)


def test_a_cached_folder_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cached_folder("name", lambda stage: (stage / "file").write_text("text") and None)
    assert (folder / "file").read_text() == "text"
    assert cached_folder("name", lambda stage: pytest.fail("written again")) == folder

    def fail(stage: Path) -> None:
        (stage / "file").touch()
        raise OSError("disk full")

    with pytest.raises(UserError, match=r"disk full.*XDG_CACHE_HOME"):
        cached_folder("other", fail)
    assert [path.name for path in folder.parent.iterdir()] == ["name"]
    (tmp_path / "plain").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "plain"))
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "plain"))):
        cached_folder("name", fail)
