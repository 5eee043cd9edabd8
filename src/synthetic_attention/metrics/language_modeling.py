"""Loss of a language model over a text: per token, per word and per byte.

T is the loss of a text in nats, −Σ ln p(token | tokens before), with the end of each line where the model predicts it.
A vocabulary of words writes `<unk>` for unknown words: the more words it lacks the lower T is. So each unknown word is
charged p(`<unk>`) · p(spelling): the first is in T, the second in S = −Σ ln p(spelling), of `data.tokenizer.Spelling`.

    perplexity       exp(T / tokens)              not comparable between vocabularies
    word_perplexity  exp((T + S) / words)         words between whitespace, plus the predicted line ends
    bits_per_byte    (T + S) / (ln 2 · bytes)     bytes of the text in UTF-8, plus the predicted line ends

The last two compare models of any vocabulary. p(word) sums to at most 1 over all words, so the charge is not too low.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class TextLoss:
    """T (`nats`), S and the counts of a text, or a part of it: `a + b` is the loss over both."""

    nats: float
    tokens: int
    words: int
    bytes: int
    spelling_nats: float = 0.0
    unknown_words: int = 0

    def __add__(self, other: TextLoss) -> TextLoss:
        return TextLoss(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def scores(self) -> dict[str, float]:
        """loss (nats per token), perplexity, word_perplexity, bits_per_byte, unknown_words."""
        if min(self.tokens, self.words, self.bytes) < 1:
            raise ValueError(
                f"got {self.tokens} tokens, {self.words} words, {self.bytes} bytes; expected at least one of each"
            )
        total = self.nats + self.spelling_nats
        return {
            "loss": self.nats / self.tokens,
            "perplexity": _exp(self.nats / self.tokens),
            "word_perplexity": _exp(total / self.words),
            "bits_per_byte": total / (math.log(2) * self.bytes),
            "unknown_words": self.unknown_words,
        }


def _exp(nats: float) -> float:
    """exp, or infinity instead of an OverflowError: a model that has not learned yet must not stop training."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def count_text(lines: Iterable[str], ends: bool = True) -> tuple[int, int]:
    """Words and bytes of lines; with `ends`, each line end is a word, as in LM1B, and a byte."""
    words = count = 0
    for line in lines:
        words += len(line.split()) + ends
        count += len(line.encode()) + ends
    return words, count


def finite(scores: Mapping[str, float]) -> dict[str, float | str]:
    """The scores for JSON, which has no infinity: an infinite perplexity becomes a text."""
    return {name: score if math.isfinite(score) else "not a finite number" for name, score in scores.items()}
