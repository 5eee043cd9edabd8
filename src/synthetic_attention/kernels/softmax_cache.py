"""A cache of softmax(R) between calls in inference, where R comes from parameters alone, until they change.

On a CPU only: elsewhere softmax(R) takes less time than to see whether R has changed.

Shape legend: B batch, H heads, T queries, S keys, D width of a value, N = D·B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..layout import Positions
from ..logits import SharedLogits
from ..real_tokens import is_traced
from .blocks import without_autocast
from .matmul import fingerprint
from .shared import has_small_range, softmax


@dataclass
class CachedSoftmax:
    """R and softmax(R), (H, T, S), where row t sees keys ≤ offset + t (None: all)."""

    scores: Tensor
    offset: int | None

    @cached_property
    def weights(self) -> Tensor:
        """softmax(R)."""
        with without_autocast("cpu"):
            return softmax(self.scores, self.offset)

    @cached_property
    def has_small_range(self) -> bool:
        """Whether every row keeps a nonzero weight under any mask."""
        return has_small_range(self.scores)


class SoftmaxCache:
    """The cache of one function, for the last length asked for. It is neither saved nor copied with a model."""

    def __init__(self) -> None:
        # The key and its entry: one attribute, as several threads may run one model.
        self._entry: tuple[Any, CachedSoftmax] | None = None

    def lookup(
        self, positions: Positions, parameters: Sequence[Tensor], make: Callable[[], Tensor], offset: int | None = None
    ) -> CachedSoftmax | None:
        """The entry for these parameters (cut to the part in use); None in training, on a GPU and in compiled code.

        `make` computes the scores (H, T, S) at `positions`, whose row t sees keys ≤ offset + t (None: all).
        """
        if positions.row_index is not None or torch.is_grad_enabled() or is_traced():
            return None
        if any(p.device.type != "cpu" or p.is_inference() for p in parameters):
            return None
        # Autocast changes the dtype in which scores are computed.
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        key = (positions.rows, positions.columns, offset, autocast, *map(fingerprint, parameters))
        entry = self._entry
        # NaN is not equal to itself: scores that are not finite are never found in the cache.
        if entry is None or entry[0] != key:
            entry = self._entry = key, CachedSoftmax(make(), offset)
        return entry[1]

    def __reduce__(self) -> tuple[type[SoftmaxCache], tuple[()]]:
        return SoftmaxCache, ()


class CachedLogits(SharedLogits):
    """Shared scores from parameters alone, with the arguments of `SoftmaxCache.lookup` and the cache of their function.

    Unless something is added to them, `attend` may cache their softmax.
    """

    def __init__(
        self, cache: SoftmaxCache, positions: Positions, parameters: Sequence[Tensor], make: Callable[[], Tensor]
    ) -> None:
        self._cache, self._source, self.rows = cache, (positions, parameters, make), positions.rows
        columns = positions.columns if positions.key_index is None else positions.key_index.shape[-1]
        self.shape = (1, 1, self.rows, columns)
        self._made: Tensor | None = None

    @property
    def scores(self) -> Tensor:  # type: ignore[override]
        if self._made is None:
            self._made = self._source[2]()
        return self._made

    def lookup(self, offset: int | None) -> CachedSoftmax | None:
        """The cached softmax of these scores."""
        return self._cache.lookup(*self._source, offset)
