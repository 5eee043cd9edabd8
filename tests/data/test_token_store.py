"""Tokens of a corpus: in memory, or in a file of the user's cache; the same to who reads them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from synthetic_attention.data import token_store
from synthetic_attention.data.token_store import TokenStore
from synthetic_attention.data.tokenizer import encode, train_tokenizer
from synthetic_attention.tasks import UserError

TEXTS = [f"text {number} of {number * 37}" for number in range(50)] + [""]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, 300, 64)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/synthetic-attention"


def _never() -> Iterator[str]:
    raise AssertionError("the texts are read again")
    yield


def test_a_file_has_what_memory_has(
    tokenizer: PreTrainedTokenizerFast, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = TokenStore.in_memory(TEXTS, tokenizer)
    monkeypatch.setattr(token_store, "_TEXTS", 7)
    store = TokenStore.build(iter(TEXTS), tokenizer, "key")
    assert isinstance(store.tokens, np.memmap)
    assert store.tokens.dtype == memory.tokens.dtype == np.uint16
    assert not store.tokens.flags.writeable
    for found in (memory, store):
        assert len(found) == len(TEXTS)
        for number, ids in enumerate(encode(tokenizer, TEXTS)):
            assert found[number].dtype == np.int32
            assert found[number].tolist() == ids.tolist()
            assert found.lengths()[number] == len(ids)
    # The second time they are there, for the tokenizer of a run too, whatever was encoded with it.
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    loaded = PreTrainedTokenizerFast.from_pretrained(str(tmp_path / "tokenizer"))
    loaded(["a"], truncation=True, max_length=2)
    again = TokenStore.build(_never(), loaded, "key")
    assert again.tokens.tolist() == store.tokens.tolist()
    assert [path.name.split("-")[0] for path in cache.iterdir()] == ["tokens"]


def test_another_text_or_tokenizer_is_another_file(tokenizer: PreTrainedTokenizerFast, cache: Path) -> None:
    TokenStore.build(TEXTS, tokenizer, "one")
    assert len(TokenStore.build(TEXTS[:3], tokenizer, "other")) == 3
    TokenStore.build(TEXTS, train_tokenizer(TEXTS, 280, 64), "one")
    assert len([*cache.iterdir()]) == 3


def test_large_vocabularies_have_wide_ids(tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(tokenizer), "__len__", lambda self: 2**16 + 1)
    for store in (TokenStore.build(TEXTS, tokenizer, "key"), TokenStore.in_memory(TEXTS, tokenizer)):
        assert store.tokens.dtype == np.uint32
        assert store[4].tolist() == encode(tokenizer, [TEXTS[4]])[0].tolist()


def test_what_fails_leaves_nothing(
    tokenizer: PreTrainedTokenizerFast, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Iterator[str]:
        yield from TEXTS
        raise UserError("line 51 is not UTF-8")

    monkeypatch.setattr(token_store, "_TEXTS", 7)
    with pytest.raises(UserError, match="line 51"):
        TokenStore.build(broken(), tokenizer, "key")
    for build in (lambda: TokenStore.build([], tokenizer, "key"), lambda: TokenStore.in_memory([], tokenizer)):
        with pytest.raises(UserError, match="got no texts"):
            build()
    assert [*cache.iterdir()] == []
    assert len(TokenStore.build(TEXTS, tokenizer, "key")) == len(TEXTS)


def test_damage_and_a_cache_that_cannot_be_written_to_are_said(
    tokenizer: PreTrainedTokenizerFast, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TokenStore.build(TEXTS, tokenizer, "key")
    (file,) = cache.glob("*/tokens.bin")
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(UserError, match="do not belong together; remove it"):
        TokenStore.build(TEXTS, tokenizer, "key")
    file.unlink()
    with pytest.raises(UserError, match=r"cannot be read .* remove it, and it is made anew"):
        TokenStore.build(TEXTS, tokenizer, "key")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set XDG_CACHE_HOME to a folder that can be written to"):
        TokenStore.build(TEXTS, tokenizer, "key")
