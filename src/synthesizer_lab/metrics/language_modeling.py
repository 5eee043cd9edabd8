"""Scores of a language model from its loss over a text in nats, −Σ ln p(token | tokens before), line ends included.

perplexity       exp(nats / tokens)              not comparable between vocabularies
word_perplexity  exp(nats / words)               words between whitespace, plus the line ends
bits_per_byte    nats / (ln 2 · bytes)           bytes of the text in UTF-8, plus the line ends
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def text_scores(nats: float, tokens: int, words: int, size: int) -> dict[str, float | str]:
    """loss (nats per token), perplexity, word_perplexity, bits_per_byte of a text of `size` bytes."""
    return {
        "loss": nats / tokens,
        "perplexity": _exp(nats / tokens),
        "word_perplexity": _exp(nats / words),
        "bits_per_byte": nats / (math.log(2) * size),
    }


def _exp(nats: float) -> float | str:
    """exp, or a text: JSON has no infinity, and a model that has not learned yet must not stop training."""
    return math.exp(nats) if nats < 700 else "not a finite number"


def count_text(lines: Iterable[str]) -> tuple[int, int]:
    """Words and bytes of lines; each line end is a word, as in LM1B, and a byte."""
    words = size = 0
    for line in lines:
        words += len(line.split()) + 1
        size += len(line.encode()) + 1
    return words, size
