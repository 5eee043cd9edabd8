"""Statistics of attention weights: entropy, distance, small weights, a histogram, mass near the diagonal.

Shape legend: H heads, T queries (rows), S keys (columns).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

Array = np.ndarray[Any, np.dtype[Any]]
# Histogram bins, eight per decade; smaller weights fall into the first.
EDGES: Array = np.logspace(-6, 0, 49)
# The k of the bands |i − j| ≤ k.
BANDS = (0, 1, 2, 4)
# A weight is small if it is less than this share of a uniform weight.
_SMALL = 0.1


def visible_keys(rows: int, columns: int, is_causal: bool) -> Array:
    """(T, S) bool: the keys that each row may attend to."""
    everything = np.ones((rows, columns), dtype=bool)
    return np.tril(everything) if is_causal else everything


class WeightStatistics:
    """Statistics of one layer's attention weights over many sequences.

    Rows with a single visible key are skipped: their weight is always 1. Each other row counts the same. `distances`
    says whether rows and columns are positions of the same sequence; `histogram` counts the weights of all heads.
    """

    def __init__(self, is_causal: bool, distances: bool) -> None:
        self.is_causal, self.distances = is_causal, distances
        self.histogram = np.zeros(len(EDGES) - 1, dtype=np.int64)
        self.lengths: list[int] = []
        self._rows: dict[str, list[Array]] = {}

    def add(self, weights: Array) -> None:
        """Add the weights (H, T, S) of one sequence."""
        _, rows, columns = weights.shape
        self.lengths.append(rows)
        visible = visible_keys(rows, columns, self.is_causal)
        many = visible.sum(axis=1) > 1
        visible, weights = visible[many], weights[:, many].astype(np.float64)
        # A convolution's window can reach outside the sequence: the weights inside then sum to less than 1.
        sums = weights.sum(axis=-1, keepdims=True)
        weights /= np.where(sums > 0, sums, 1.0)
        keys = visible.sum(axis=1)
        self.histogram += np.histogram(np.clip(weights[:, visible], EDGES[0], 1.0), bins=EDGES)[0]
        entropy = special.entr(weights).sum(axis=-1)
        values = {
            "entropy": entropy,
            "relative_entropy": entropy / np.log(keys),
            "small_weights": ((weights < _SMALL / keys[:, None]) & visible).sum(axis=-1) / keys,
            "largest_weight": weights.max(axis=-1, initial=0.0),
        }
        if self.distances:
            far = np.abs(np.flatnonzero(many)[:, None] - np.arange(columns))
            values["distance"] = (weights * far).sum(axis=-1)
            values["uniform_distance"] = np.broadcast_to((far * visible).sum(axis=-1) / keys, entropy.shape)
        for name, value in values.items():
            self._rows.setdefault(name, []).append(value)

    def per_head(self) -> list[dict[str, float]]:
        """Means over rows, for each head; docs/inspecting.md explains them."""
        means = {name: np.concatenate(rows, axis=1) for name, rows in self._rows.items()}
        if not means["entropy"].size:
            return []
        heads = zip(*(values.mean(axis=1).round(6).tolist() for values in means.values()), strict=True)
        return [dict(zip(means, values, strict=True)) for values in heads]


def describe_scores(scores: Array, is_causal: bool) -> dict[str, Any]:
    """For each head of R (H, N, N) the standard deviation, and by k the share of softmax(R) within |i − j| ≤ k."""
    size = scores.shape[-1]
    masked = np.where(visible_keys(size, size, is_causal), scores.astype(np.float64), -np.inf)
    weights = special.softmax(masked, axis=-1)
    far = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    mass = {str(k): (weights * (far <= k)).sum(axis=-1).mean(axis=-1).tolist() for k in BANDS}
    return {"std": scores.std(axis=(1, 2)).tolist(), "band_mass": mass}
