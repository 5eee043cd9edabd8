"""Dropout that draws four numbers at a time on the CPU, where drawing them is what dropout costs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["dropout"]


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero each element with probability p and divide the others by 1 − p, in training; `F.dropout` otherwise fast.

    PyTorch draws one double for each element, on one core, a good part of a training step of a narrow model. Here
    each element gets 16 bits of a random int64, so p is rounded to a multiple of 2⁻¹⁶ (and the scale fits it).
    """
    if not training or p == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    result: Tensor = _Dropout.apply(x, p)
    return result


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        steps = min(round(p * 2**16), 2**16 - 1)
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        # The comparison writes 0 and 1 in the dtype of x: masks of bool multiply and fill several times slower.
        kept = torch.empty(x.numel(), dtype=x.dtype)
        torch.ge(bits.view(torch.int16)[: x.numel()], steps - 2**15, out=kept)
        kept = kept.view(x.shape)
        ctx.save_for_backward(kept)
        ctx.scale = 2**16 / (2**16 - steps)
        return (x * kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return (grad * kept).mul_(ctx.scale), None
