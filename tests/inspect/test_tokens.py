"""Tokens as people read them."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from synthetic_attention.data.tokenizer import encode, train_tokenizer
from synthetic_attention.inspect.tokens import readable_tokens


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    lines = ["Die Mädchen grüßen schöne Straßen und hören $5 Lärm", "Donaudampfschifffahrtsgesellschaft"] * 9
    return train_tokenizer(lines, vocab_size=500, max_length=64)


def _labels(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    return readable_tokens(tokenizer, encode(tokenizer, [text])[0].tolist())


def test_umlauts_and_spaces(tokenizer: PreTrainedTokenizerFast) -> None:
    labels = _labels(tokenizer, "schöne Mädchen grüßen $5")
    assert "".join(labels) == "schöne␣Mädchen␣grüßen␣$5</s>"
    assert not any("\\x" in label for label in labels)


def test_parts_of_a_character_are_bytes_and_long_pieces_are_cut(tokenizer: PreTrainedTokenizerFast) -> None:
    assert _labels(tokenizer, "語") == ["\\xe8", "\\xaa", "\\x9e", "</s>"]
    assert _labels(tokenizer, "Donaudampfschifffahrtsgesellschaft")[0] == "Donaudampfsch…"
    assert _labels(tokenizer, "\n\t") == ["\\n", "\\t", "</s>"]


def test_special_tokens_and_text_that_looks_like_them(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    assert readable_tokens(tokenizer, [0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert "".join(_labels(tokenizer, "</s>")) == "</s></s>"
    tokenizer.save_pretrained(tmp_path)
    assert _labels(PreTrainedTokenizerFast.from_pretrained(tmp_path), "ä ö") == _labels(tokenizer, "ä ö")


def test_a_vocabulary_of_another_kind_keeps_its_marks() -> None:
    words = Tokenizer(models.WordLevel({"▁für": 0, "ĠĠ": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    assert readable_tokens(tokenizer, [0, 1, 2]) == ["▁für", "ĠĠ", "[UNK]"]
