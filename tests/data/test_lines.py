"""Files of one record per line: encoding, gzip, errors with file and line, skipped lines."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from synthetic_attention.data import lines
from synthetic_attention.data.lines import (
    MalformedLineError,
    collect,
    decode_lines,
    fingerprint,
    json_object,
    numbered_lines,
    read_lines,
    stream_lines,
    texts_of,
)
from synthetic_attention.errors import UserError


def test_only_newlines_end_a_line() -> None:
    content = "\ufeffa\u2028b\x0bc\r\nd\re\n\nf".encode()
    assert decode_lines(content, "f") == ["a\u2028b\x0bc", "d\re", "", "f"]


def test_bytes_that_are_not_utf8_name_the_line() -> None:
    with pytest.raises(UserError, match=r"f, line 2: byte 0xff at position 3"):
        decode_lines(b"ok\nab\xff\n", "f")
    with pytest.raises(UserError, match=r"f, line 12: byte 0xff"):
        decode_lines(b"ok\nab\xff\n", "f", first_line=11)


def test_gzip_and_plain_files_read_the_same(tmp_path: Path) -> None:
    content = "eins\n\nzwölf\r\n".encode()
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))
    for name in ("a.txt", "a.txt.gz"):
        assert [*numbered_lines(tmp_path / name)] == [(1, "eins"), (3, "zwölf")]
        assert read_lines(tmp_path / name) == ["eins", "", "zwölf"]


def test_lines_are_numbered_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_CHUNK_BYTES", 10)
    texts = [f"line {number}" for number in range(9)]
    for name, compress in (("a.txt", bytes), ("a.txt.gz", gzip.compress)):
        (tmp_path / name).write_bytes(compress("\n".join(texts).encode()))
        assert [*stream_lines(tmp_path / name)] == texts
        (tmp_path / name).write_bytes(compress("\n".join(texts).encode() + b"\n\xff\n"))
        with pytest.raises(UserError, match=f"{name}, line 10: byte 0xff"):
            [*stream_lines(tmp_path / name)]


@pytest.mark.parametrize(
    ("name", "content", "fact"),
    [
        ("none.txt", None, "no such file"),
        ("plain.gz", b"not compressed", "gzip"),
        ("cut.gz", gzip.compress(b"some text that is long enough to be cut" * 9)[:-12], "gzip"),
        ("blank.txt", b"\n \n", "empty"),
        ("empty.txt", b"", "empty"),
        ("latin.txt", b"caf\xe9\n", "line 1: byte 0xe9 at position 4"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, content: bytes | None, fact: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    for read in (read_lines, lambda path: [*numbered_lines(path)]):
        with pytest.raises(UserError, match=f"{name}.*{fact}"):
            read(tmp_path / name)


def _even(_: int, line: str) -> Iterator[int]:
    if int(line) % 2:
        raise MalformedLineError("odd")
    yield int(line)


def test_bad_lines_are_named_or_counted() -> None:
    numbered = [(1, "2"), (4, "3"), (5, "6")]
    with pytest.raises(UserError, match=r"numbers, line 4: odd; .*skip_bad_lines"):
        collect("numbers", numbered, _even)
    parsed = collect("numbers", numbered, _even, skip_bad_lines=True)
    assert (parsed.records, parsed.skipped) == ([2, 6], 1)
    with pytest.raises(UserError, match="1 rows"):
        collect("numbers", [(1, "3")], _even, skip_bad_lines=True, unit="row")


@pytest.mark.parametrize(("line", "fact"), [("{", "JSON"), ("[1]", "list"), ("[" * 100_000, "JSON")])
def test_lines_that_are_not_json_objects_are_malformed(line: str, fact: str) -> None:
    with pytest.raises(MalformedLineError, match=fact):
        json_object(line)


def test_fields_are_texts_or_lists_of_texts() -> None:
    row = {"a": "x", "b": ["y", "z"], "c": 1, "d": ["y", None]}
    assert texts_of(row, "a") == ["x"]
    assert texts_of(row, "b") == ["y", "z"]
    for field, fact in (("e", "'e'.*a, b, c, d"), ("c", "'c' has a int"), ("d", "'d' has a NoneType")):
        with pytest.raises(MalformedLineError, match=fact):
            texts_of(row, field)


def test_fingerprints_depend_on_the_text_only() -> None:
    one, other = (decode_lines(content, "f") for content in (b"a\nb\n", b"a\r\nb"))
    assert fingerprint(one) == fingerprint(other) != fingerprint(["a", "c"])
