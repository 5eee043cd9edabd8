"""Reading lines and finding splits."""

from pathlib import Path

import pytest

from synthetic_attention.data.text import decode_lines, find_split, fingerprint, read_lines
from synthetic_attention.tasks import UserError, get_task


def test_only_newlines_end_a_line() -> None:
    content = "a\u2028b\x0bc\r\nd\n\ne".encode()
    assert decode_lines(content, "f") == ["a\u2028b\x0bc", "d", "", "e"]


def test_a_byte_order_mark_is_no_text() -> None:
    assert decode_lines(b"\xef\xbb\xbfa\n", "f") == ["a"]


def test_bytes_that_are_not_utf8_name_the_line() -> None:
    with pytest.raises(UserError, match=r"f, line 2: byte 0xff at position 3 is not UTF-8"):
        decode_lines(b"ok\nab\xff\n", "f")
    with pytest.raises(UserError, match=r"f, line 12: byte 0xff"):
        decode_lines(b"ok\nab\xff\n", "f", first_line=11)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(UserError, match="the file is empty"):
        read_lines(path)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_lines(tmp_path / "f")
    with pytest.raises(UserError, match="no such folder"):
        find_split(tmp_path / "nowhere", "train", ("en", "de"))
    _touch(tmp_path, "train.en")
    with pytest.raises(UserError, match="a file; expected the folder"):
        find_split(tmp_path / "train.en", "train", ("en", "de"))


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("x\n", encoding="utf-8")


def test_splits_are_found_by_their_other_names_and_beginnings(tmp_path: Path) -> None:
    _touch(tmp_path, "val.en", "val.de", "test_2016.en", "test_2016.de", "train.en")
    assert find_split(tmp_path, "valid", ("en", "de")) == "val"
    assert find_split(tmp_path, "test", ("en", "de")) == "test_2016"
    assert find_split(tmp_path, "test_2016", ("en", "de")) == "test_2016"
    with pytest.raises(UserError, match=r"train\.de: no such file, though the other language is there"):
        find_split(tmp_path, "train", ("en", "de"))
    with pytest.raises(UserError, match="the splits there are: test_2016, val"):
        find_split(tmp_path, "dev2", ("en", "de"))
    _touch(tmp_path, "test_2017.en", "test_2017.de")
    with pytest.raises(UserError, match="choose one of: test_2016, test_2017"):
        find_split(tmp_path, "test", ("en", "de"))


def test_fingerprints_see_text_not_line_ends() -> None:
    one, other = (decode_lines(content, "f") for content in (b"a\nb\n", b"a\r\nb"))
    assert fingerprint(one) == fingerprint(other) != fingerprint(["a", "c"])


def test_unknown_tasks_list_the_known() -> None:
    with pytest.raises(UserError, match=r"unknown task 'translate'; expected one of: .*translation"):
        get_task("translate")
