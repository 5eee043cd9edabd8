"""Word vectors and their similarities, on vectors small enough to compute by hand."""

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from synthetic_attention.metrics.embeddings import WordVectors, embedding_scores, read_word_vectors
from synthetic_attention.tasks import UserError

VECTORS = WordVectors(
    {"east": 0, "north": 1, "west": 2, "diagonal": 3, "zoë": 4, "none": 5},
    np.array([[1, 0], [0, 1], [-1, 0], [3, 3], [0, 2], [0, 0]], dtype=np.float32),
)
HALF = 1 / math.sqrt(2)


def _score(hypothesis: str, *references: str) -> tuple[float, float, float]:
    scores = embedding_scores([hypothesis], [references], VECTORS)
    return scores["embedding_average"], scores["embedding_extrema"], scores["embedding_greedy"]


def test_the_same_words_in_any_order_are_alike() -> None:
    assert _score("east north", "north east") == pytest.approx((100, 100, 100))
    # One word, and one that is longer in the same direction.
    assert _score("north", "zoë") == pytest.approx((100, 100, 100))


def test_similarities_by_hand() -> None:
    # Means (½, ½) and (0, 1). Extrema (1, 1) and (0, 1). Greedy: (0 + 1) / 2 one way, 1 the other.
    assert _score("east north", "north") == pytest.approx((100 * HALF, 100 * HALF, 75))
    # Mean (0, 0) has no direction. Extrema: of 1 and −1, which are as far from 0, the positive one.
    # Greedy: (1 − 1) / 2 one way, 1 the other.
    assert _score("east west", "east") == pytest.approx((0, 100, 50))
    # The value farthest from 0 is negative: −1 of (0, −1). Greedy: (0 − 1) / 2 one way, 0 the other.
    assert _score("north west", "east") == pytest.approx((-100 * HALF, -100 * HALF, -25))
    # Opposites.
    assert _score("east", "west") == pytest.approx((-100, -100, -100))


def test_words_without_vector_are_left_out_and_empty_sides_score_0() -> None:
    assert _score("unknown east", "east other") == pytest.approx((100, 100, 100))
    assert _score("", "east") == (0, 0, 0)
    assert _score("unknown", "east") == (0, 0, 0)
    assert _score("east", "") == (0, 0, 0)
    assert _score("none", "east") == (0, 0, 0)


def test_the_best_reference_counts_and_the_mean_over_hypotheses() -> None:
    assert _score("east", "west", "diagonal", "unknown") == pytest.approx((100 * HALF,) * 3)
    scores = embedding_scores(["east", "north"], [["east"], ["east"]], VECTORS)
    assert [*scores.values()] == pytest.approx([50, 50, 50])
    with pytest.raises(ValueError, match="got 1 predictions and 0 references"):
        embedding_scores(["a"], [], VECTORS)


def test_both_text_formats_packed_or_not(tmp_path: Path) -> None:
    lines = "zoë 0.5 -1 2e-1\n. . 1 2 3\nthe 1 1 1\nzoë 9 9 9\n"
    (tmp_path / "glove.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "word2vec.txt.gz").write_bytes(gzip.compress(f"4 3\n{lines}".encode()))
    for name in ("glove.txt", "word2vec.txt.gz"):
        vectors = read_word_vectors(tmp_path / name)
        assert [*vectors.rows] == ["zoë", ". .", "the"]
        np.testing.assert_allclose(vectors("the zoë nobody"), [[1, 1, 1], [0.5, -1, 0.2]])
        assert vectors("nobody").shape == (0, 3)
    assert [*read_word_vectors(tmp_path / "glove.txt", {"the", "other"}).rows] == ["the"]
    with pytest.raises(UserError, match="none of the 1 words of the text has a vector there"):
        read_word_vectors(tmp_path / "glove.txt", {"other"})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a 1 2\nb 1\n", "line 2: got 1 numbers; expected a word and 2 numbers"),
        ("a 1 2\nb 1 x\n", "line 2: could not convert string to float"),
        ("alone\n", "line 1: got 0 numbers"),
    ],
)
def test_malformed_vectors_name_the_line(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "v.txt").write_text(lines, encoding="utf-8")
    with pytest.raises(UserError, match=f"v.txt, {message}"):
        read_word_vectors(tmp_path / "v.txt")
