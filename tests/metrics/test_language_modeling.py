"""Perplexities and bits, with unknown words charged."""

import itertools
import math

import numpy as np
import pytest

from synthetic_attention.data.tokenizer import Spelling
from synthetic_attention.metrics.language_modeling import TextLoss, count_text


def test_words_and_bytes_are_counted_with_and_without_ends() -> None:
    lines = ["a  cat", "", "zoë !"]
    assert count_text(lines) == (4 + 3, 6 + 0 + 6 + 3)
    assert count_text(lines, ends=False) == (4, 12)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary() -> None:
    # 256 bytes and an end, all equally likely, over "ab c": 5 symbols, 2 words and the end, 5 bytes with the newline.
    scores = TextLoss(5 * math.log(257), tokens=5, words=3, bytes=5).scores()
    assert scores["loss"] == pytest.approx(math.log(257))
    assert scores["perplexity"] == pytest.approx(257)
    assert scores["word_perplexity"] == pytest.approx(257 ** (5 / 3))
    assert scores["bits_per_byte"] == pytest.approx(math.log2(257))


def test_a_word_vocabulary_that_spells_everything_costs_what_bytes_cost() -> None:
    # It writes <unk> with certainty for every word; then the spelling is all there is to pay, as with a byte model.
    words = ["ab", "zoë"]
    spelled = Spelling.learned([]).cost(words)
    assert spelled == pytest.approx((2 + 1 + 4 + 1) * math.log(257))
    scores = TextLoss(0.0, tokens=3, words=3, bytes=8, spelling_nats=spelled, unknown_words=2).scores()
    assert scores["perplexity"] == 1
    assert scores["word_perplexity"] == pytest.approx(257 ** (8 / 3))
    assert scores["bits_per_byte"] == pytest.approx(math.log2(257))
    assert scores["unknown_words"] == 2


@pytest.mark.parametrize("words", [[], ["abba", "baa", "é"]])
def test_spellings_are_a_distribution_over_all_strings(words: list[str]) -> None:
    spelling = Spelling.learned(words)
    chance = np.exp(-spelling.nats)
    assert chance.sum() == pytest.approx(1)
    # A string of n bytes and an end: over all n these sum to end · Σ (1 − end)ⁿ = 1.
    end = chance[-1]
    assert end * sum((1 - end) ** length for length in range(20_000)) == pytest.approx(1)
    two = sum(math.exp(-spelling.cost(["".join(pair)])) for pair in itertools.product("ab", repeat=2))
    assert two == pytest.approx((chance[ord("a")] + chance[ord("b")]) ** 2 * end)


def test_learned_spellings_are_cheaper_for_words_like_those_they_come_from() -> None:
    uniform, learned = Spelling.learned([]), Spelling.learned(["hello", "yellow", "mellow"] * 50)
    assert learned.cost(["fellow"]) < uniform.cost(["fellow"])
    assert learned.cost(["ÿþ"]) > uniform.cost(["ÿþ"])
    assert learned.cost([]) == 0
    counted = Spelling.learned({"hello": 50, "yellow": 50, "mellow": 50})
    np.testing.assert_allclose(counted.nats, learned.nats)


def test_parts_of_a_text_add_up() -> None:
    parts = [TextLoss(3.0, 2, 1, 9), TextLoss(4.0, 5, 2, 1, 0.5, 1)]
    assert parts[0] + parts[1] == TextLoss(7.0, 7, 3, 10, 0.5, 1)
    scores = (parts[0] + parts[1]).scores()
    assert scores["perplexity"] == pytest.approx(math.e)
    assert scores["word_perplexity"] == pytest.approx(math.exp(2.5))


def test_what_has_no_number_is_infinite_or_refused() -> None:
    assert TextLoss(1e6, 1, 1, 1).scores()["perplexity"] == math.inf
    with pytest.raises(ValueError, match="got 0 tokens, 1 words, 1 bytes"):
        TextLoss(0.0, 0, 1, 1).scores()
