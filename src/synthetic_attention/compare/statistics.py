"""Numbers that say how attention is spread: entropy, distance, sparsity, a histogram, mass near the diagonal.

Shape legend: H heads, T queries (rows), S keys (columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["BANDS", "EDGES", "WeightStatistics", "band_mass", "visible_keys"]

Array = np.ndarray[Any, np.dtype[Any]]
# Bins of a histogram of weights, eight to a decade; smaller weights fall into the first.
EDGES: Array = np.logspace(-6, 0, 49)
# k of the bands |i − j| ≤ k.
BANDS = (0, 1, 2, 4)
# A weight is small if it is less than this share of a uniform weight.
_SMALL = 0.1


def visible_keys(rows: int, columns: int, is_causal: bool) -> Array:
    """(T, S) bool: the keys that a row may see."""
    everything = np.ones((rows, columns), dtype=bool)
    return np.tril(everything) if is_causal else everything


@dataclass
class WeightStatistics:
    """The statistics of one layer's attention weights, over as many texts as are added.

    Rows that see only one key are left out: their weight is 1 whatever the model. Each row counts the same.

    Args:
        heads: H.
        is_causal: a row sees itself and what is before it.
        distances: whether rows and columns are positions of one sequence.
    """

    heads: int
    is_causal: bool
    distances: bool
    rows: int = 0
    counts: Array = field(init=False)
    sums: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros((self.heads, len(EDGES) - 1), dtype=np.int64)
        names = ("entropy", "relative_entropy", "small_weights", "largest_weight", "distance", "uniform_distance")
        self.sums = {name: np.zeros(self.heads) for name in names}

    def add(self, weights: Array) -> None:
        """Add the weights (H, T, S) of one text."""
        _, rows, columns = weights.shape
        visible = visible_keys(rows, columns, self.is_causal)
        many = visible.sum(axis=1) > 1
        visible, weights = visible[many], weights[:, many].astype(np.float64)
        # The windows of convolutions reach beyond the text: what is within it counts as the whole.
        sums = weights.sum(axis=-1, keepdims=True)
        weights /= np.where(sums > 0, sums, 1.0)
        keys = visible.sum(axis=1)
        self.rows += len(keys)
        for counts, head in zip(self.counts, weights, strict=True):
            counts += np.histogram(np.clip(head[visible], EDGES[0], 1.0), bins=EDGES)[0]
        # 0 · log 0 is 0.
        entropy = -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(axis=-1)
        small = ((weights < _SMALL / keys[:, None]) & visible).sum(axis=-1) / keys
        values = {
            "entropy": entropy,
            "relative_entropy": entropy / np.log(keys),
            "small_weights": small,
            "largest_weight": weights.max(axis=-1, initial=0.0),
        }
        if self.distances:
            places = np.arange(weights.shape[-1])
            far = np.abs(np.flatnonzero(many)[:, None] - places)
            values["distance"] = (weights * far).sum(axis=-1)
            values["uniform_distance"] = np.broadcast_to((far * visible).sum(axis=-1) / keys, values["distance"].shape)
        for name, value in values.items():
            self.sums[name] += value.sum(axis=-1)

    def per_head(self) -> list[dict[str, float]]:
        """Means over rows, for each head.

        entropy (nats); relative_entropy, 1 where attention is uniform; small_weights, the share of visible keys that
        get less than a tenth of a uniform weight; largest_weight; distance in tokens, and what it would be if
        attention were uniform.
        """
        if not self.rows:
            return []
        names = [name for name in self.sums if self.distances or "distance" not in name]
        means = {name: (self.sums[name] / self.rows).round(6).tolist() for name in names}
        return [{name: means[name][head] for name in names} for head in range(self.heads)]


def band_mass(scores: Array, is_causal: bool, bands: Sequence[int] = BANDS) -> Array:
    """(H, len(bands)): how much of softmax(scores) lies within |i − j| ≤ k, mean over rows; scores are (H, N, N)."""
    size = scores.shape[-1]
    visible = visible_keys(size, size, is_causal)
    masked = np.where(visible, scores.astype(np.float64), -np.inf)
    weights = np.exp(masked - masked.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    far = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    return np.stack([(weights * (far <= k)).sum(axis=-1).mean(axis=-1) for k in bands], axis=-1)
