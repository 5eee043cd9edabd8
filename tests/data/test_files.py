"""Finding the files of a split."""

from pathlib import Path

import pytest

from synthetic_attention.data.files import split_file, split_files
from synthetic_attention.tasks import UserError


def _names(data: Path, split: str, *endings: str) -> list[str]:
    return [path.name for path in split_files(data, split, endings or (".txt",))]


def test_splits_are_found_by_their_other_names_beginnings_and_endings(tmp_path: Path) -> None:
    for name in ("train_news.txt", "train-2.txt.gz", "training.txt", "dev.txt", "dev2.txt", "test.jsonl", "test.md"):
        (tmp_path / name).touch()
    assert _names(tmp_path, "train") == ["train-2.txt.gz", "train_news.txt"]
    # The exact name goes before those that begin with it.
    assert _names(tmp_path, "valid") == ["dev.txt"]
    assert _names(tmp_path, "dev2") == ["dev2.txt"]
    assert _names(tmp_path, "test", ".txt", ".jsonl") == ["test.jsonl"]
    assert split_file(tmp_path, "valid", (".txt",)).name == "dev.txt"
    with pytest.raises(UserError, match=r"several files are split 'train': train-2\.txt\.gz, train_news\.txt"):
        split_file(tmp_path, "train", (".txt",))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "valid.jsonl").touch()
    with pytest.raises(UserError, match=r"no file train\{\.jsonl \| \.json\}; the files there are: valid\.jsonl"):
        split_file(tmp_path, "train", (".jsonl", ".json"))
    with pytest.raises(UserError, match="the files there are: none"):
        split_files(tmp_path, "valid", (".txt",))
    with pytest.raises(UserError, match="a file; expected the folder"):
        split_files(tmp_path / "valid.jsonl", "valid", (".jsonl",))
    with pytest.raises(UserError, match="no such folder of data"):
        split_files(tmp_path / "nowhere", "valid", (".jsonl",))


def test_a_file_that_is_there_packed_and_not_is_not_read_twice(tmp_path: Path) -> None:
    for name in ("train-1.txt", "train-1.txt.gz", "train-2.txt.gz"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"both train-1\.txt and train-1\.txt\.gz are there; expected one of them"):
        split_files(tmp_path, "train", (".txt",))
    (tmp_path / "train-1.txt").unlink()
    assert [path.name for path in split_files(tmp_path, "train", (".txt",))] == ["train-1.txt.gz", "train-2.txt.gz"]
