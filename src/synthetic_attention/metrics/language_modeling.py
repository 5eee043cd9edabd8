"""Loss of a language model over a text, by token, by word and by byte.

Let T be the nats that a model takes for a text: −Σ ln p(token | what is before), the end of each line counted where
the model predicts it. A vocabulary of subwords or bytes can write every word, so T is what the text costs. A vocabulary
of words cannot: it writes `<unk>` for a word that it lacks, which says nothing of the word, and the more words it lacks
the less it pays. So such a word is charged in two parts, p(word) = p(`<unk>`) · p(spelling): the first is in T, the
second is S, the sum over all unknown words of −ln p(spelling), from `Spelling`, a distribution over all strings of
bytes. Then

    perplexity       exp(T / tokens)              of its own vocabulary: not comparable between vocabularies
    word_perplexity  exp((T + S) / words)         words: what whitespace divides, plus the predicted ends
    bits_per_byte    (T + S) / (ln 2 · bytes)     bytes of the text in UTF-8, a line end counted where it is predicted

The last two compare models of any vocabulary. p(word) sums to at most 1 over all words, known or not: some is lost on
the spellings of known words, so the charge is, if anything, too high.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Spelling", "TextLoss", "count_text", "finite"]

_END = 256


@dataclass(frozen=True)
class Spelling:
    """p(spelling): each byte of a word on its own, then an end.

    Args:
        nats: (257,): −ln p of each byte, and of the end.
    """

    nats: np.ndarray

    @classmethod
    def uniform(cls) -> Spelling:
        """All bytes and the end equally likely: ln 257 for each, nothing to learn."""
        return cls(np.full(_END + 1, math.log(_END + 1)))

    @classmethod
    def learned(cls, words: Iterable[str] | Mapping[str, int]) -> Spelling:
        """Counts of bytes and ends in `words`, each plus 1.

        Args:
            words: the words of the training text that the vocabulary lacks, as often as they come, or how often each
                comes: what is unknown in the text to score is spelled like them. Of no words it is uniform.
        """
        counts = np.ones(_END + 1)
        for word, times in Counter(words).items():
            counts += times * np.bincount(_symbols(word), minlength=_END + 1)
        return cls(-np.log(counts / counts.sum()))

    def cost(self, words: Iterable[str]) -> float:
        """S: the nats to spell `words`."""
        return float(sum(self.nats[_symbols(word)].sum() for word in words))


def _symbols(word: str) -> np.ndarray:
    return np.array([*word.encode(), _END])


@dataclass(frozen=True)
class TextLoss:
    """Sums over a text, or a part of it: `a + b` is the loss over both.

    Args:
        nats: T.
        tokens: predicted tokens.
        words, bytes: as `count_text` counts them.
        spelling_nats: S, 0 where every word can be written.
        unknown_words: how many words were charged.
    """

    nats: float
    tokens: int
    words: int
    bytes: int
    spelling_nats: float = 0.0
    unknown_words: int = 0

    def __add__(self, other: TextLoss) -> TextLoss:
        return TextLoss(
            self.nats + other.nats,
            self.tokens + other.tokens,
            self.words + other.words,
            self.bytes + other.bytes,
            self.spelling_nats + other.spelling_nats,
            self.unknown_words + other.unknown_words,
        )

    def scores(self) -> dict[str, float]:
        """loss (nats per token), perplexity, word_perplexity, bits_per_byte, unknown_words.

        Raises:
            ValueError: there are no tokens, words or bytes.
        """
        if min(self.tokens, self.words, self.bytes) < 1:
            raise ValueError(
                f"got {self.tokens} tokens, {self.words} words, {self.bytes} bytes; expected a text with some of each"
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
    """exp, which is infinite where a float cannot hold it: a model that has not learned yet must not stop training."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def count_text(lines: Iterable[str], ends: bool = True) -> tuple[int, int]:
    """Words and bytes of lines.

    Args:
        ends: the end of each line is predicted too: it counts as a word, as in LM1B, and as a byte, the newline.
    """
    words = count = 0
    for line in lines:
        words += len(line.split()) + ends
        count += len(line.encode()) + ends
    return words, count


def finite(scores: Mapping[str, float]) -> dict[str, float | str]:
    """The scores, a perplexity that no float holds as a text, since JSON has no infinity."""
    return {name: score if math.isfinite(score) else "not a finite number" for name, score in scores.items()}
