"""softmax(R) between calls in inference, until R changes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..logits import Kept
from ..transforms import is_traced
from .base import Span

__all__ = ["KeptWeights"]


class KeptWeights:
    """What was computed from parameters alone, for the last length asked for. Neither saved nor copied with a model.

    On a CPU only: elsewhere softmax(R) takes less time than to ask whether R has changed.
    """

    def __init__(self) -> None:
        # What it was computed from, and what it is: one attribute, as several threads may run one model.
        self._state: tuple[tuple[Any, ...], Kept] = ((), {})

    def still(self, span: Span, *parameters: Tensor) -> Kept | None:
        """What is known of `span`, to look up and add to; empty if a parameter has changed since, None in training.

        A change is seen by the version that autograd counts, and, as writing through `.data` goes past that, by a
        weighted sum, which tells an order from another. Autocast is a change too: it decides in what dtype scores are
        computed.

        Args:
            parameters: what is in use of them, (H, rows, columns): the rest is not looked at.
        """
        if torch.is_grad_enabled() or is_traced():
            return None
        if span.rows <= 1 or span.row_positions is not None or span.key_positions is not None:
            return None
        if any(p.device.type != "cpu" or p.is_inference() for p in parameters):
            return None
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        key = (span.rows, span.columns, autocast, *map(_fingerprint, parameters))
        known, kept = self._state
        # A NaN is not equal to itself: of an R that is not finite nothing is kept, and it goes where it went without.
        if key != known:
            kept = {}
            self._state = key, kept
        return kept

    def __deepcopy__(self, memo: dict[int, Any]) -> KeptWeights:
        return KeptWeights()

    def __reduce__(self) -> tuple[type[KeptWeights], tuple[()]]:
        return KeptWeights, ()


def _fingerprint(parameter: Tensor) -> tuple[Any, ...]:
    # In float32 or wider: a sum in float16 overflows, and one in bfloat16 does not see small changes.
    wide = parameter.to(torch.promote_types(parameter.dtype, torch.float32))
    with torch.autocast("cpu", enabled=False):
        rows = wide.reshape(-1, wide.shape[-1]) @ _marks(wide.shape[-1], 1.7).to(wide.dtype)
        total = float(rows.double() @ _marks(len(rows), 2.3))
    # An infinite total would hide all other changes. (Each time another NaN: tuples take the same object for equal.)
    return parameter.data_ptr(), parameter._version, parameter.dtype, total if math.isfinite(total) else float("nan")


@lru_cache(maxsize=64)
def _marks(count: int, step: float) -> Tensor:
    """Numbers (count,) of which no two are alike; those of another step are others."""
    return torch.cos(step * torch.arange(count, dtype=torch.float64, device="cpu"))
