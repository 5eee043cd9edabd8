"""Plain text and its tokens, in memory or in memory-mapped tables."""

import gzip
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from synthetic_attention.data import corpus
from synthetic_attention.data.corpus import (
    DOCUMENT_FIELDS,
    Corpus,
    Texts,
    TokenStore,
    read_corpus,
    read_texts,
    standard_library_data,
)
from synthetic_attention.data.files import fingerprint
from synthetic_attention.data.tokenizer import encode, train_tokenizer
from synthetic_attention.errors import UserError

TEXTS = [f"text {number} of {number * 37}" for number in range(50)] + [""]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, 300, 64)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def test_in_memory_or_streamed_the_text_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a.txt one\n\nthree\n", encoding="utf-8")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\ufeffzwei\r\nvier".encode()))
    texts = Texts(lambda: read_texts([tmp_path / "a.txt", tmp_path / "b.txt.gz"]))
    expected = ["a.txt one", "", "three", "zwei", "vier"]
    loaded, streamed = read_corpus("train", texts), read_corpus("train", texts, stream=True)
    for found in (loaded, streamed):
        assert [*found.texts] == [*found.texts] == expected
        assert found.fingerprint() == {"split": "train", "texts": 5, "sha256": fingerprint(expected)}
        assert len(found) == 5
    assert isinstance(loaded.texts, list)
    assert not isinstance(streamed.texts, list)
    monkeypatch.setattr(corpus, "_VOCABULARY_CHARACTERS", 14)
    assert [*loaded.sample()] == expected
    assert [*streamed.sample()] == expected[:3]
    (tmp_path / "blank.txt").write_text(" \n\n")
    for stream in (False, True):
        with pytest.raises(UserError, match="train"):
            read_corpus("train", read_texts([tmp_path / "blank.txt"]), stream)


def test_documents_of_json_lines(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": " one "}, {"article": ["two", "three"]}, {"text": ""}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "blank.jsonl").write_text("\n")
    assert [*read_texts([tmp_path / "blank.jsonl", path], DOCUMENT_FIELDS)] == ["one", "two three", ""]
    assert next(read_texts([path])) == json.dumps(rows[0])
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: no field text; .*article; .* text_field=…"):
        [*read_texts([path], ["text"])]
    for line, fact in (('{"text": 1}', "has a int; expected text, or a list of texts$"), ("{", r"not JSON \(.*\)$")):
        path.write_text(line)
        with pytest.raises(UserError, match=rf"a\.jsonl, line 1: .*{fact}"):
            [*read_texts([path], DOCUMENT_FIELDS)]


def _never() -> Iterator[str]:
    raise AssertionError("the texts are read again")
    yield


def _tokens(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast, key: str, stream: bool = True) -> TokenStore:
    return TokenStore.of(Corpus("train", texts, 1, key, stream), tokenizer)


def test_cached_tokens_equal_those_in_memory(
    tokenizer: PreTrainedTokenizerFast, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = _tokens(TEXTS, tokenizer, "key", stream=False)
    monkeypatch.setattr(corpus, "_CHARACTERS", 100)
    store = _tokens(iter(TEXTS), tokenizer, "key")
    rows = encode(tokenizer, TEXTS)
    whole = np.concatenate(rows)
    for found in (memory, store):
        assert len(found) == len(TEXTS)
        assert found.lengths().tolist() == [len(row) for row in rows]
        assert found.ids(2, 3).dtype == np.int32
        for start, size in itertools.product((0, 1, 90, 2000, *found.offsets[:9]), (0, 5, 91, 400, len(whole))):
            assert found.ids(start, size).tolist() == whole[start : start + size].tolist()
    # A second run finds them, also with the tokenizer of a saved run.
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    loaded = PreTrainedTokenizerFast.from_pretrained(str(tmp_path / "tokenizer"))
    loaded(["a"], truncation=True, max_length=2)
    assert _tokens(_never(), loaded, "key").tokens.to_pylist() == whole.tolist()
    # Another text or tokenizer has another table.
    assert len(_tokens(TEXTS[:3], tokenizer, "other")) == 3
    assert len(_tokens(TEXTS, train_tokenizer(TEXTS, 280, 64), "key")) == len(TEXTS)
    assert len([*cache.rglob("*.arrow")]) == 3


def test_cached_tokens_are_memory_mapped(tokenizer: PreTrainedTokenizerFast, cache: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    before = pyarrow.total_allocated_bytes()
    store = _tokens((text * 50 for text in TEXTS * 20), tokenizer, "key")
    assert pyarrow.total_allocated_bytes() - before < len(store.tokens) // 4


def test_errors_leave_no_table(tokenizer: PreTrainedTokenizerFast, cache: Path) -> None:
    def broken() -> Iterator[str]:
        yield from TEXTS
        raise UserError("line 51 is not UTF-8")

    with pytest.raises(UserError, match="line 51"):
        _tokens(broken(), tokenizer, "key")
    assert len(_tokens(TEXTS, tokenizer, "key")) == len(TEXTS)
    (file,) = (path for path in cache.rglob("*.arrow") if path.stat().st_size > 1000)
    file.write_bytes(file.read_bytes()[:700])
    with pytest.raises(UserError, match=r"cache.*tokens-"):
        _tokens(TEXTS, tokenizer, "key")
    # Neither can be written.
    shutil.rmtree(cache)
    cache.touch()
    with pytest.raises(UserError, match=str(cache)):
        _tokens(TEXTS, tokenizer, "key")


def test_the_standard_library_is_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = standard_library_data()
    assert folder == standard_library_data()
    texts = {split: (folder / f"{split}.txt").read_text("utf-8") for split in ("train", "valid", "test")}
    assert len(texts["train"]) > 5 * len(texts["valid"]) > 10_000
    assert all("import " in text and text.endswith("\n\n") for text in texts.values())
    # Another build of the same version.
    (tmp_path / "one.py").write_text("import this")
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda _: tmp_path)
    assert standard_library_data() != folder
