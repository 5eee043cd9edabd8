"""Plain text: which files are a split, in memory or not; and data sets of the hub, without a network."""

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synthetic_attention.data.corpus import (
    Lines,
    Selected,
    corpus_files,
    first_texts,
    hub_lines,
    read_corpus,
)
from synthetic_attention.data.hub import HubSet, is_hub_name
from synthetic_attention.data.text import fingerprint
from synthetic_attention.tasks import UserError


def _write(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(f"{name} one\n\nthree\n", encoding="utf-8")


def test_files_of_a_split(tmp_path: Path) -> None:
    data = tmp_path / "data"
    _write(data, "train_news.txt", "valid.txt", "wiki.tokens", "b.txt", "a.txt", "train-2.txt")
    (data / "test.txt.gz").write_bytes(gzip.compress(b"packed\n"))

    def names(split: str, *patterns: Any, path: Path = data) -> list[str]:
        return [path.name for path in corpus_files(path, split, *patterns)]

    assert names("train") == ["train-2.txt", "train_news.txt"]
    assert (names("valid"), names("test")) == (["valid.txt"], ["test.txt.gz"])
    assert names("train", "wiki.*") == ["wiki.tokens"]
    # In the order of the patterns, each file once.
    assert names("train", ["b*.txt", "[ab].txt"]) == ["b.txt", "a.txt"]
    assert names("train", str(data / "a.t*")) == ["a.txt"]
    # A single file is the training text; the others are named, from the folder that it is in.
    assert names("train", path=data / "a.txt") == ["a.txt"]
    assert names("valid", "b.txt", path=data / "a.txt") == ["b.txt"]
    assert names("valid", path=data / "valid.txt") == ["valid.txt"]
    # The text of another split is not trained on, unless it is named; a name that only begins alike is of no split.
    with pytest.raises(UserError, match=r"valid\.txt: by its name the text of split 'valid'; .* --set train_files="):
        names("train", path=data / "valid.txt")
    assert names("train", "valid.txt", path=data / "valid.txt") == ["valid.txt"]
    _write(data, "values.txt")
    assert names("train", path=data / "values.txt") == ["values.txt"]
    with pytest.raises(UserError, match="a single file, which is the training text"):
        names("valid", path=data / "values.txt")
    (data / "values.txt").unlink()
    with pytest.raises(UserError, match=r"a single file, which is the training text; .* --set valid_files="):
        names("valid", path=data / "a.txt")
    with pytest.raises(UserError, match=r"no file 'c\*'; the files there are: a\.txt, b\.txt"):
        names("train", ["a.txt", "c*"])
    with pytest.raises(UserError, match="no such file or folder of data"):
        names("train", "a.txt", path=tmp_path / "none")
    with pytest.raises(UserError, match=r"'\*\*a'"):
        names("train", "**a")


def test_in_memory_or_not_the_text_is_the_same(tmp_path: Path) -> None:
    _write(tmp_path, "a.txt")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\ufeffzwei\r\nvier".encode()))
    texts = Selected(Lines([tmp_path / "a.txt", tmp_path / "b.txt.gz"]), keep=str.strip, change=str.upper)
    expected = ["A.TXT ONE", "THREE", "ZWEI", "VIER"]
    kept, streamed = read_corpus("train", texts), read_corpus("train", texts, stream=True)
    for found in (kept, streamed):
        assert [*found.texts] == [*found.texts] == expected
        assert len(found) == 4
        assert found.fingerprint() == {"split": "train", "texts": 4, "sha256": fingerprint(expected)}
    assert isinstance(kept.texts, list)
    assert not isinstance(streamed.texts, list)
    assert [*Selected(texts, limit=3)] == expected[:3]
    assert [*first_texts(texts, 10)] == expected[:2]


def test_numbers_of_lines_count_on_from_one_piece_of_a_file_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synthetic_attention.data.lines._CHUNK", 10)
    lines = [f"line {number}" for number in range(9)]
    for name, pack in (("a.txt", bytes), ("a.txt.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack("\n".join(lines).encode()))
        assert [*Lines([tmp_path / name])] == lines
        (tmp_path / name).write_bytes(pack("\n".join(lines).encode() + b"\n\xff\n"))
        with pytest.raises(UserError, match=f"{name}, line 10: byte 0xff"):
            [*Lines([tmp_path / name])]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    whole = gzip.compress(b"a line\n" * 500)
    contents = {
        "cut.txt.gz": whole[: len(whole) // 2],
        "other.txt.gz": b"no gzip",
        "bytes.txt": b"one\ntwo\xff\n",
        "blank.txt": b" \n\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name, message in (
        ("cut.txt.gz", "cut.txt.gz: not a whole gzip file"),
        ("other.txt.gz", "other.txt.gz: not a whole gzip file"),
        ("bytes.txt", "bytes.txt, line 2: byte 0xff at position 4"),
        ("blank.txt", "train: there is no text in it"),
        ("missing.txt", "missing.txt: no such file"),
    ):
        for stream in (False, True):
            with pytest.raises(UserError, match=message):
                read_corpus("train", Lines([tmp_path / name]), stream)


class _DataSet:
    def __init__(self, rows: list[dict[str, Any]], seen: list[int]) -> None:
        self.rows, self.seen = rows, seen
        self.column_names = [*rows[0]]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            self.seen.append(1)
            yield row


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A `datasets` that has one data set, and notes what it is asked for."""
    fake = SimpleNamespace(calls=[], read=[])
    rows = [{"text": f"text {number}\n", "id": number} for number in range(5)]

    def load_dataset(name: str, subset: str | None, **options: Any) -> _DataSet:
        fake.calls.append((name, subset, options))
        if name != "owner/name":
            raise FileNotFoundError(f"no data set\n{name}")
        if options["split"] not in ("train", "validation"):
            raise ValueError(f"Unknown split {options['split']!r}")
        return _DataSet(rows, fake.read)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return fake


def test_columns_of_data_sets_of_the_hub(hub: SimpleNamespace) -> None:
    assert is_hub_name(Path("hub:owner/name"))
    assert not is_hub_name(Path("owner/name"))
    source = HubSet.of(Path("hub:owner/name"), "small", "v1")
    assert [*source.rows("valid", ["id", "text"], limit=2)] == [(0, "text 0\n"), (1, "text 1\n")]
    assert hub.calls == [
        ("owner/name", "small", {"split": "validation", "revision": "v1", "streaming": False}),
    ]
    with pytest.raises(UserError, match="no column body; its columns are: text, id"):
        [*source.rows("train", ["body"])]
    with pytest.raises(UserError, match="hub:owner/name, split 'best': cannot be read: Unknown split 'best'"):
        [*source.rows("best", ["text"])]
    with pytest.raises(UserError, match="hub:other, split 'train': cannot be read: no data set other"):
        [*HubSet.of(Path("hub:other")).rows("train", ["text"])]
    for name in ("hub:", "hub:a/b/c", "hub:/b", "a/b"):
        with pytest.raises(UserError, match="expected hub:OWNER/NAME"):
            HubSet.of(Path(name))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"reading hub:owner/name needs datasets.*pip install -e '\.\[hub\]'"):
        [*HubSet.of(Path("hub:owner/name")).rows("train", ["text"])]


def test_texts_of_the_hub_are_fetched_once(
    hub: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = HubSet("owner/name")
    expected = [f"text {number}" for number in range(3)]
    assert hub_lines(source, "train", "text", limit=3) == expected
    streamed = hub_lines(source, "train", "text", stream=True, limit=3)
    assert [*streamed] == [*streamed] == expected
    assert hub.calls[-1][2]["streaming"] is True
    calls = len(hub.calls)
    # No more is fetched than what is asked for, and a second time nothing.
    assert len(hub.read) == 6
    assert [*hub_lines(source, "train", "text", stream=True, limit=3)] == expected
    assert len(hub.calls) == calls
    with pytest.raises(UserError, match="row 1: column 'id' has a int; expected text"):
        hub_lines(source, "train", "id", stream=True)
    assert len([*(tmp_path / "synthetic-attention").iterdir()]) == 1
