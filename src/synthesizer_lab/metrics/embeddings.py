"""Similarity of word vectors: average, extrema, greedy (Liu et al. 2016, "How NOT to evaluate your dialogue…")."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from ..data.files import as_number, numbered_lines
from ..errors import UserError

# The signature of similarities with the input embeddings of the scored model.
OWN_VECTORS = "vectors:the model's input embeddings"
# Maps a text to (N, D): a vector for each of its words that has one.
Embed = Callable[[str], np.ndarray]


def read_word_vectors(path: Path, words: Collection[str]) -> Embed:
    """Read the vectors of `words` in the text format of GloVe or word2vec, gzip or not; all values have to be finite.

    The first line of word2vec, two whole numbers, is skipped. Words may contain spaces; of duplicates the first counts.
    """
    vectors: dict[str, np.ndarray] = {}
    width = 0
    for number, line in numbered_lines(path):
        if number == 1 and len(line.split()) == 2:
            continue
        width = width or len(line.split()) - 1
        word, *numbers = line.rstrip().rsplit(" ", width)
        is_wanted = word in words and word not in vectors
        vector = [as_number(text) for text in numbers] if is_wanted else numbers
        if len(numbers) != width or not width or None in vector:
            raise UserError(f"{path}, line {number}: expected a word and {width} numbers")
        if is_wanted:
            vectors[word] = np.array(vector, dtype=np.float32)
    if not vectors:
        raise UserError(f"{path}: none of the {len(words)} words of the text has a vector there")
    return lambda text: np.array([vectors[word] for word in text.split() if word in vectors])


def embedding_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]], embed: Embed) -> dict[str, float]:
    """Mean similarity of hypotheses and references in percent, in three ways; of several references the best counts.

    embedding_average: cosine of the mean vectors. embedding_extrema: cosine of the vectors with the value farthest
    from 0 in each dimension. embedding_greedy: cosine of each word with the nearest word of the other side, averaged
    over the words of a side, then over the sides. A side without vectors has similarity 0.
    """
    sums = np.zeros(3)
    for hypothesis, several in zip(hypotheses, references, strict=True):
        ours = embed(hypothesis).astype(np.float64)
        sums += np.max([_similarities(ours, embed(reference).astype(np.float64)) for reference in several], axis=0)
    names = ("embedding_average", "embedding_extrema", "embedding_greedy")
    return dict(zip(names, (100 * sums / len(hypotheses)).tolist(), strict=True))


def _similarities(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Average, extrema, greedy."""
    if not len(ours) or not len(theirs):
        return 0.0, 0.0, 0.0
    average = _unit(ours.mean(axis=0)) @ _unit(theirs.mean(axis=0))
    bounds = [(side.min(axis=0), side.max(axis=0)) for side in (ours, theirs)]
    one, other = (_unit(np.where(np.abs(low) > high, low, high)) for low, high in bounds)
    cosines = _unit(ours) @ _unit(theirs).T
    return average, one @ other, (cosines.max(axis=1).mean() + cosines.max(axis=0).mean()) / 2


def _unit(vectors: np.ndarray) -> np.ndarray:
    """`vectors` scaled to length 1; zero vectors stay."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)
