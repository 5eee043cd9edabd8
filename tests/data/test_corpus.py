"""Plain text."""

import gzip
import json
from pathlib import Path

import pytest

from synthesizer_lab.data.corpus import DOCUMENT_FIELDS, Corpus, check_text, read_texts, standard_library_data
from synthesizer_lab.data.files import fingerprint
from synthesizer_lab.errors import UserError


def test_lines_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a.txt one\n\nthree\n", encoding="utf-8")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\ufeffzwei\r\nvier".encode()))
    expected = ["a.txt one", "", "three", "zwei", "vier"]
    texts = [*read_texts([tmp_path / "a.txt", tmp_path / "b.txt.gz"])]
    assert texts == expected
    found = Corpus("train", expected)
    assert [*check_text(expected, "train")] == expected
    assert found.fingerprint() == {"split": "train", "texts": 5, "sha256": fingerprint(expected)}
    with pytest.raises(UserError, match="train: there is no text"):
        [*check_text([" ", ""], "train")]


def test_documents_of_json_lines(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": " one "}, {"article": ["two", "three"]}, {"text": ""}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert [*read_texts([path], DOCUMENT_FIELDS)] == ["one", "two three", ""]
    assert next(read_texts([path])) == json.dumps(rows[0])
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: no field text; .*article; .* text_field=…"):
        [*read_texts([path], ["text"])]
    for line, fact in (('{"text": 1}', "has a int; expected text, or a list of texts;"), ("{", r"not JSON \(.*\);")):
        path.write_text(line)
        with pytest.raises(UserError, match=rf"a\.jsonl, line 1: .*{fact}"):
            [*read_texts([path], DOCUMENT_FIELDS)]


def test_the_standard_library_is_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = standard_library_data()
    assert folder == standard_library_data()
    texts = {split: (folder / f"{split}.txt").read_text("utf-8") for split in ("train", "valid", "test")}
    assert len(texts["train"]) > 5 * len(texts["valid"]) > 10_000
    assert all("import " in text and text.endswith("\n\n") for text in texts.values())
