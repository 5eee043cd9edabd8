"""A cache of softmax(R) between calls in inference, where R comes from parameters alone, until they change.

On a CPU only: elsewhere softmax(R) takes less time than to see whether R has changed.

Shape legend: B batch, H heads, T queries, S keys, D width of a value, N = D·B.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..layout import Positions, is_traced
from ..logits import SharedLogits
from .blocks import block_softmax, wide
from .shared import block_scores, blocks, needs_care, nonzero, shared_attention

__all__ = ["CachedLogits", "SoftmaxCache", "cached_attention"]


@dataclass
class CachedSoftmax:
    """Results computed from parameters.

    Attributes:
        scores: R, (H, T, S).
        weights: softmax(R), by the offset of its causal mask; None for no mask.
        care: whether masks need care, by the dtype of the values.
    """

    scores: Tensor
    weights: dict[int | None, Tensor] = field(default_factory=dict)
    care: dict[torch.dtype, bool] = field(default_factory=dict)


# The version that autograd counts, and, as writing through `.data` does not count, a weighted sum.
Fingerprint = tuple[int, int, torch.dtype, float]


class SoftmaxCache:
    """The cache of one function, for the last length asked for. Neither saved nor copied with a model."""

    def __init__(self) -> None:
        # The key and its entry: one attribute, as several threads may run one model.
        self._entry: tuple[Any, CachedSoftmax] | None = None

    def lookup(
        self, positions: Positions, parameters: tuple[Tensor, ...], make: Callable[[], Tensor]
    ) -> CachedSoftmax | None:
        """The entry for these parameters, with the scores at least; None where nothing may be cached.

        Args:
            positions: the rows and columns that are asked for.
            parameters: (H, …, …), cut to the part in use: the rest is ignored.
            make: computes the scores (H, T, S).
        """
        if torch.is_grad_enabled() or is_traced() or positions.rows <= 1 or positions.row_index is not None:
            return None
        if any(p.device.type != "cpu" or p.is_inference() for p in parameters):
            return None
        # Autocast changes the dtype in which scores are computed.
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        key = (positions.rows, positions.columns, autocast, *map(_fingerprint, parameters))
        entry = self._entry
        # NaN is not equal to itself: scores that are not finite are never found in the cache.
        if entry is None or entry[0] != key:
            entry = self._entry = key, CachedSoftmax(make())
        return entry[1]

    def __deepcopy__(self, memo: dict[int, Any]) -> SoftmaxCache:
        return SoftmaxCache()

    def __reduce__(self) -> tuple[type[SoftmaxCache], tuple[()]]:
        return SoftmaxCache, ()


class CachedLogits(SharedLogits):
    """Shared scores from parameters alone. Unless something is added to them, `attend` may cache their softmax.

    Args:
        cache: of the function that they belong to.
        positions: the rows and columns of the scores.
        parameters: those of the scores, cut to the rows and columns in use.
        make: computes the scores (H, T, S) from the parameters.
    """

    def __init__(
        self, cache: SoftmaxCache, positions: Positions, parameters: tuple[Tensor, ...], make: Callable[[], Tensor]
    ) -> None:
        self._cache, self._positions, self._parameters, self._make = cache, positions, parameters, make
        self._made: Tensor | None = None

    @property
    def scores(self) -> Tensor:
        if self._made is None:
            self._made = self._make()
        return self._made

    def lookup(self) -> CachedSoftmax | None:
        """The cached results for these scores; None in training, on a GPU and in compiled code."""
        return self._cache.lookup(self._positions, self._parameters, self._make)


def cached_attention(
    cached: CachedSoftmax, value: Tensor, mask: Tensor | None, offset: int | None, value_is_masked: bool
) -> Tensor:
    """`shared_attention` in inference, with softmax(R) from the cache.

    A mask changes only the denominators, Y = P (m ∘ V) / P m with P = softmax(R), for any m: P is as good as E.
    """
    scores = cached.scores
    if mask is not None:
        if value.dtype not in cached.care:
            cached.care[value.dtype] = needs_care(scores, value)
        if cached.care[value.dtype]:
            return shared_attention(scores, value, mask, offset is not None, offset or 0, None, value_is_masked)
    with torch.autocast(value.device.type, enabled=False):
        if offset not in cached.weights:
            cached.weights[offset] = _softmax(scores, offset)
        return _attend(cached.weights[offset], value, mask, offset, value_is_masked)


def _attend(weights: Tensor, value: Tensor, mask: Tensor | None, offset: int | None, value_is_masked: bool) -> Tensor:
    value_HDBS = value.permute(1, 3, 0, 2)
    if mask is not None and not value_is_masked:
        value_HDBS = value_HDBS * mask.to(value.dtype)
    value_HNS = value_HDBS.flatten(1, 2)
    out = value.new_empty(*value_HDBS.shape[:3], weights.shape[1])
    out_HNT = out.flatten(1, 2)
    for h, t, last in blocks(weights, offset):
        p_HTS = weights[h, t, :last]
        torch.bmm(value_HNS[h, :, :last], p_HTS.to(value.dtype).mT, out=out_HNT[h, :, t])
        if mask is not None:
            norm_HTB = p_HTS @ mask.to(p_HTS.dtype).mT[:last]
            out[h, :, :, t] /= nonzero(norm_HTB.mT)[:, None]
    return out.permute(2, 0, 3, 1)


def _softmax(scores: Tensor, offset: int | None) -> Tensor:
    """All weights (H, T, S), zeros where a causal row sees nothing."""
    weights = torch.empty(scores.shape, dtype=wide(scores), device=scores.device)
    for h, t, last in blocks(scores, offset):
        weights[h, t, :last] = block_softmax(block_scores(scores, h, t, last, offset))
        weights[h, t, last:] = 0
    return weights


def _fingerprint(parameter: Tensor) -> Fingerprint:
    # In float32 or wider: a sum in float16 overflows, and one in bfloat16 does not see small changes.
    with torch.autocast("cpu", enabled=False):
        rows = parameter.to(wide(parameter)).reshape(-1, parameter.shape[-1])
        sums = rows @ _numbers(rows.shape[-1], 1.7).to(rows.dtype)
        total = float(sums.double() @ _numbers(len(sums), 2.3))
    # An infinite total would hide all other changes. (Each time another NaN: tuples take the same object for equal.)
    return parameter.data_ptr(), parameter._version, parameter.dtype, total if math.isfinite(total) else float("nan")


@lru_cache(maxsize=64)
def _numbers(count: int, step: float) -> Tensor:
    """(count,) numbers, all different, so that a weighted sum sees the order; another step gives others."""
    return torch.cos(step * torch.arange(count, dtype=torch.float64, device="cpu"))
