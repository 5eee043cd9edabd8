"""FLOPs of an attention layer, and the rate at which a device multiplies matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from .cases import Case
from .harness import Contender, time_turns

# Rows and columns of the matrices whose product gives the device's rate.
SIZE = 8192


def count_flops(build: Callable[[Case], Contender], case: Case, training: bool) -> int:
    """FLOPs of the matrix products of a step, for the real tokens and the pairs of tokens that the mask allows.

    PyTorch's counter does not see inside custom operators, so it counts the equation as it is written, on tensors
    without data. What a kernel computes twice, or for masked pairs, is not counted.
    """
    without_data = replace(case, mask="full", device="meta")
    layer, (x, mask, gradient) = build(without_data), without_data.inputs()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        y = layer.call(x, mask)
        if training:
            y.backward(gradient)
    counts, aten = counter.get_flop_counts()["Global"], torch.ops.aten
    projections = counts.get(aten.mm, 0) + counts.get(aten.addmm, 0)
    share = case.lengths.double() / case.length
    pairs = (1 + 1 / case.length) / 2 if case.is_causal else float((share**2).mean())
    return round(float(share.mean()) * projections + pairs * (sum(counts.values()) - projections))


@cache
def matrix_rate(dtype: torch.dtype, device: str) -> float:
    """FLOPs per second of one product of large matrices."""
    a, b, out = (torch.randn(SIZE, SIZE, dtype=dtype, device=device) for _ in range(3))
    times = time_turns({"product": partial(torch.mm, a, b, out=out)}, "product", repeats=20, device=device)
    (_, milliseconds, _), _ = times["product"]
    return 2 * SIZE**3 / (1e-3 * milliseconds)
