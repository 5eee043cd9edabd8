"""Similarity of word vectors: average, extrema, greedy (Liu et al. 2016, "How NOT to evaluate your dialogue…")."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data.lines import numbered_lines
from ..errors import UserError
from .checks import check_references

__all__ = ["OWN_VECTORS", "Embed", "WordVectors", "embedding_scores", "read_word_vectors"]

# The signature of similarities by the input embeddings of the model that is scored.
OWN_VECTORS = "vectors:the model's input embeddings"
Vectors = np.ndarray[tuple[int, int], np.dtype[np.float32]]
# Text to one vector for each of its words that has one: (N, D).
Embed = Callable[[str], Vectors]


@dataclass(frozen=True)
class WordVectors:
    """A vector for each of some words.

    Args:
        rows: the row of each word.
        matrix: (words, D).
    """

    rows: Mapping[str, int]
    matrix: Vectors

    def __call__(self, text: str) -> Vectors:
        """(N, D): the vectors of the words of `text`, which spaces divide; a word without vector is left out."""
        return self.matrix[[self.rows[word] for word in text.split() if word in self.rows]]


def read_word_vectors(path: Path, words: Collection[str] | None = None) -> WordVectors:
    """Read word vectors in the usual text format, GloVe's or word2vec's: a word and its numbers on a line.

    A first line of two whole numbers, how many there are and of what width, is word2vec's and is not needed. Words may
    have spaces in them; of a word that comes twice the first vector counts.

    Args:
        path: gzip if its name ends with .gz.
        words: keep only these, which saves memory.

    Raises:
        UserError: the file cannot be read, a line has another width than the first, or no wanted word is there.
    """
    rows: dict[str, int] = {}
    kept: list[np.ndarray] = []
    width = 0
    for number, line in _without_header(numbered_lines(path)):
        width = width or len(line.split()) - 1
        word, *numbers = line.rstrip().rsplit(" ", width)
        if len(numbers) != width or not width:
            raise UserError(f"{path}, line {number}: got {len(numbers)} numbers; expected a word and {width} numbers")
        if word in rows or (words is not None and word not in words):
            continue
        try:
            kept.append(np.array(numbers, dtype=np.float32))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}; expected a word and {width} numbers") from None
        rows[word] = len(rows)
    if not kept:
        raise UserError(f"{path}: none of the {len(words or ())} words of the text has a vector there")
    return WordVectors(rows, np.stack(kept))


def _without_header(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    number, first = next(lines)
    columns = first.split()
    if len(columns) != 2 or not all(column.isdecimal() for column in columns):
        yield number, first
    yield from lines


def embedding_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]], embed: Embed) -> dict[str, float]:
    """Mean similarity of hypotheses and references in percent, in three ways; of several references the best counts.

    embedding_average: cosine of the mean vectors. embedding_extrema: cosine of the vectors that have in each dimension
    the value farthest from 0. embedding_greedy: each word's cosine with the word that is nearest on the other side,
    averaged over the words of a side, then over the sides. A side without any vector has similarity 0.

    Args:
        embed: text to vectors, `WordVectors` or the input embeddings of a model.

    Raises:
        ValueError: not as many hypotheses as lists of references, none at all, or a hypothesis without reference.
    """
    check_references(hypotheses, references)
    ways = {"embedding_average": _average, "embedding_extrema": _extrema, "embedding_greedy": _greedy}
    sums = dict.fromkeys(ways, 0.0)
    for hypothesis, several in zip(hypotheses, references, strict=True):
        ours = embed(hypothesis).astype(np.float64)
        theirs = [embed(reference).astype(np.float64) for reference in several]
        for name, way in ways.items():
            sums[name] += max(way(ours, one) if len(ours) and len(one) else 0.0 for one in theirs)
    return {name: 100 * total / len(hypotheses) for name, total in sums.items()}


def _unit(vectors: np.ndarray) -> np.ndarray:
    """`vectors` with length 1; a zero vector stays."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


def _average(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(_unit(ours.mean(axis=0)) @ _unit(theirs.mean(axis=0)))


def _extrema(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(_unit(_farthest(ours)) @ _unit(_farthest(theirs)))


def _farthest(vectors: np.ndarray) -> np.ndarray:
    highest, lowest = vectors.max(axis=0), vectors.min(axis=0)
    return np.where(np.abs(lowest) > highest, lowest, highest)


def _greedy(ours: np.ndarray, theirs: np.ndarray) -> float:
    cosines = _unit(ours) @ _unit(theirs).T
    return float((cosines.max(axis=1).mean() + cosines.max(axis=0).mean()) / 2)
