"""Word vectors and their similarities, on vectors small enough to compute by hand."""

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from synthesizer_lab.metrics.embeddings import embedding_scores, read_word_vectors
from synthesizer_lab.tasks import UserError

VECTORS = {"east": (1, 0), "north": (0, 1), "west": (-1, 0), "diagonal": (3, 3), "zoë": (0, 2), "none": (0, 0)}
HALF = 1 / math.sqrt(2)


def _embed(text: str) -> np.ndarray:
    return np.array([VECTORS[word] for word in text.split() if word in VECTORS])


@pytest.mark.parametrize(
    ("hypothesis", "references", "scores"),
    [
        # The same words in any order; one word, and one that is longer in the same direction; opposites.
        ("east north", ["north east"], (100, 100, 100)),
        ("north", ["zoë"], (100, 100, 100)),
        ("east", ["west"], (-100, -100, -100)),
        # Means (½, ½) and (0, 1). Extrema (1, 1) and (0, 1). Greedy: (0 + 1) / 2 one way, 1 the other.
        ("east north", ["north"], (100 * HALF, 100 * HALF, 75)),
        # Mean (0, 0) has no direction. Extrema: of 1 and −1, which are as far from 0, the positive one.
        # Greedy: (1 − 1) / 2 one way, 1 the other.
        ("east west", ["east"], (0, 100, 50)),
        # The value farthest from 0 is negative: −1 of (0, −1). Greedy: (0 − 1) / 2 one way, 0 the other.
        ("north west", ["east"], (-100 * HALF, -100 * HALF, -25)),
        # Words without vector are left out, and empty sides score 0.
        ("unknown east", ["east other"], (100, 100, 100)),
        ("", ["east"], (0, 0, 0)),
        ("east", [""], (0, 0, 0)),
        ("none", ["east"], (0, 0, 0)),
        # The best reference counts.
        ("east", ["west", "diagonal", "unknown"], (100 * HALF,) * 3),
    ],
)
def test_similarities_by_hand(hypothesis: str, references: list[str], scores: tuple[float, ...]) -> None:
    found = embedding_scores([hypothesis], [references], _embed)
    assert [*found] == ["embedding_average", "embedding_extrema", "embedding_greedy"]
    assert [*found.values()] == pytest.approx(scores)
    twice = embedding_scores([hypothesis, "east"], [references, ["east"]], _embed)
    assert [*twice.values()] == pytest.approx([(score + 100) / 2 for score in scores])


def test_both_text_formats_packed_or_not(tmp_path: Path) -> None:
    lines = "zoë 0.5 -1 2e-1\n. . 1 2 3\nthe 1 1 1\nzoë 9 9 9\n"
    (tmp_path / "glove.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "word2vec.txt.gz").write_bytes(gzip.compress(f"4 3\n{lines}".encode()))
    for name in ("glove.txt", "word2vec.txt.gz"):
        embed = read_word_vectors(tmp_path / name, {"zoë", "the", "nobody"})
        np.testing.assert_allclose(embed("the zoë nobody . ."), [[1, 1, 1], [0.5, -1, 0.2]])
        assert len(embed("nobody")) == 0
    with pytest.raises(UserError, match="none of the 1 words of the text has a vector there"):
        read_word_vectors(tmp_path / "glove.txt", {"other"})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a 1 2\nb 1\n", "line 2: expected a word and 2 numbers"),
        *((f"a 1 2\nb {value} 1\n", "line 2: expected a word and 2 numbers") for value in ("x", "nan", "1e400")),
        ("alone\n", "line 1: expected a word and 0 numbers"),
    ],
)
def test_malformed_vectors_name_the_line(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "v.txt").write_text(lines, encoding="utf-8")
    with pytest.raises(UserError, match=f"v.txt, {message}"):
        read_word_vectors(tmp_path / "v.txt", {"a", "b"})
