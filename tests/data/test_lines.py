"""Files of a record a line: gzip, errors with their place, bad lines counted."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from synthetic_attention.data.lines import (
    MalformedLineError,
    collect,
    json_object,
    numbered_lines,
    texts_of,
)
from synthetic_attention.tasks import UserError


def test_gzip_and_plain_files_read_the_same(tmp_path: Path) -> None:
    content = "eins\n\nzwölf\r\n".encode()
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))
    for name in ("a.txt", "a.txt.gz"):
        assert [*numbered_lines(tmp_path / name)] == [(1, "eins"), (3, "zwölf")]


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        next(numbered_lines(tmp_path / "nowhere.jsonl"))
    whole = gzip.compress(b"some text that is long enough to be cut" * 9)
    for name, content, message in (
        ("plain.gz", b"not packed", "not a whole gzip file"),
        ("cut.gz", whole[:-12], "not a whole gzip file"),
        ("blank.txt", b"\n \n", "the file is empty"),
        ("latin.txt", b"caf\xe9\n", r"latin.txt, line 1: byte 0xe9 at position 4 is not UTF-8"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            next(numbered_lines(tmp_path / name))


def _even(_: int, line: str) -> Iterator[int]:
    if int(line) % 2:
        raise MalformedLineError("odd")
    yield int(line)


def test_bad_lines_are_refused_with_their_place_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    numbered = [(1, "2"), (4, "3"), (5, "6")]
    with pytest.raises(UserError, match=r"numbers, line 4: odd; .*skip_bad_lines"):
        collect(path, numbered, _even)
    parsed = collect(path, numbered, _even, skip_bad_lines=True)
    assert (parsed.records, parsed.skipped) == ([2, 6], 1)
    with pytest.raises(UserError, match="no record is left; 1 lines are malformed"):
        collect(path, [(1, "3")], _even, skip_bad_lines=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "not JSON"), ("[1]", "got a JSON list; expected an object"), ("[" * 100_000, "not JSON")],
)
def test_what_is_no_json_object_is_malformed(line: str, message: str) -> None:
    with pytest.raises(MalformedLineError, match=message):
        json_object(line)


def test_fields_are_texts_or_lists_of_texts() -> None:
    row = {"a": "x", "b": ["y", "z"], "c": 1, "d": ["y", None]}
    assert texts_of(row, "a") == ["x"]
    assert texts_of(row, "b") == ["y", "z"]
    with pytest.raises(MalformedLineError, match="no field 'e'; the fields are: a, b, c, d"):
        texts_of(row, "e")
    with pytest.raises(MalformedLineError, match="field 'c' has a int"):
        texts_of(row, "c")
    with pytest.raises(MalformedLineError, match="field 'd' has a NoneType"):
        texts_of(row, "d")
