"""Perplexities and bits."""

import math

import pytest

from synthesizer_lab.metrics.language_modeling import count_text, text_scores


def test_words_and_bytes_are_counted_with_line_ends() -> None:
    assert count_text(["a  cat", "", "zoë !"]) == (4 + 3, 6 + 0 + 6 + 3)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary() -> None:
    # 256 bytes and an end, all equally likely, over "ab c": 5 symbols, 2 words and the end, 5 bytes with the newline.
    scores = text_scores(5 * math.log(257), tokens=5, words=3, size=5)
    expected = {"loss": math.log(257), "perplexity": 257, "word_perplexity": 257 ** (5 / 3)}
    assert scores == pytest.approx({**expected, "bits_per_byte": math.log2(257)})
    assert text_scores(1e6, 1, 1, 1)["perplexity"] == "not a finite number"
