"""Numbers of attention weights, against the same in plain loops."""

import math

import numpy as np
import pytest

from synthesizer_lab.inspect.collect import BANDS, WeightStatistics, describe_scores


def _weights(heads: int, rows: int, columns: int, is_causal: bool, seed: int = 0) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(size=(heads, rows, columns)) * 3
    if is_causal:
        scores[:, ~np.tril(np.ones((rows, columns), dtype=bool))] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _plain(texts: list[np.ndarray], head: int, is_causal: bool) -> dict[str, float]:
    """The definitions, one weight after the other."""
    sums = dict.fromkeys(("entropy", "relative_entropy", "small_weights", "largest_weight", "distance"), 0.0)
    sums["uniform_distance"], rows = 0.0, 0
    for text in texts:
        for i, row in enumerate(text[head]):
            seen = [j for j in range(len(row)) if j <= i or not is_causal]
            if len(seen) == 1:
                continue
            rows += 1
            entropy = -sum(row[j] * math.log(row[j]) for j in seen)
            sums["entropy"] += entropy
            sums["relative_entropy"] += entropy / math.log(len(seen))
            sums["small_weights"] += sum(row[j] < 0.1 / len(seen) for j in seen) / len(seen)
            sums["largest_weight"] += max(row[j] for j in seen)
            sums["distance"] += sum(row[j] * abs(i - j) for j in seen)
            sums["uniform_distance"] += sum(abs(i - j) for j in seen) / len(seen)
    return {name: value / rows for name, value in sums.items()}


@pytest.mark.parametrize("is_causal", [False, True])
def test_statistics_are_their_definitions(is_causal: bool) -> None:
    texts = [_weights(3, n, n, is_causal, seed=n) for n in (7, 2, 11, 1)]
    statistics = WeightStatistics(is_causal, distances=True)
    for text in texts:
        statistics.add(text)
    for head, found in enumerate(statistics.per_head()):
        assert found == pytest.approx(_plain(texts, head, is_causal), abs=1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
def test_mass_near_the_diagonal(is_causal: bool) -> None:
    scores = np.random.default_rng(1).normal(size=(2, 7, 7)) * 2
    found, seen = describe_scores(scores, is_causal), np.tri(7) if is_causal else np.ones((7, 7))
    weights = np.exp(scores) * seen
    assert found["std"] == pytest.approx(scores[:, seen > 0].std(axis=1))
    for k in BANDS:
        near = (weights * (np.abs(np.subtract.outer(range(7), range(7))) <= k)).sum(-1) / weights.sum(-1)
        assert found["band_mass"][str(k)] == pytest.approx(near.mean(-1))
