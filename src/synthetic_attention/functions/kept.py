"""softmax(R) between calls in inference, until R changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..logits import Kept
from .base import Span

__all__ = ["KeptWeights"]


class KeptWeights:
    """What was computed from parameters alone, for the last length asked for. Neither saved nor copied with a model.

    On a CPU only: elsewhere softmax(R) takes less time than to ask whether R has changed.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] = ()
        self._kept: Kept = {}

    def still(self, span: Span, *parameters: Tensor) -> Kept | None:
        """What is known of `span`, to look up and add to; empty if a parameter has changed since, None in training.

        A change is seen by the version that autograd counts, and, as writing through `.data` goes past that, by the
        sum.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        if span.rows == 1 or span.row_positions is not None or span.key_positions is not None:
            return None
        if any(p.device.type != "cpu" or p.is_inference() for p in parameters):
            return None
        key = (span.rows, span.columns, *((p.data_ptr(), p._version, p.dtype, float(p.sum())) for p in parameters))
        # A NaN in R is not equal to itself: nothing is kept then, and it goes where it went without.
        if key != self._key:
            self._key, self._kept = key, {}
        return self._kept

    def __deepcopy__(self, memo: dict[int, Any]) -> KeptWeights:
        return KeptWeights()

    def __reduce__(self) -> tuple[type[KeptWeights], tuple[()]]:
        return KeptWeights, ()
