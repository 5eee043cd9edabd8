"""Dropout from eight random bits per element on the CPU, where random numbers are the cost of dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..layout import is_traced

__all__ = ["add_dropout", "dropout"]


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout as `F.dropout`, faster on a CPU.

    PyTorch draws one double for each element, on one core, a good part of a training step of a narrow model. Here
    each element gets 8 bits of a random int64. So the probability of a call is one of the two multiples of 2⁻⁸ around
    p, drawn such that it is p on average, and the scale is the one that fits it. (A p below 2⁻⁸ or above 1 − 2⁻⁸ gets
    16 bits and multiples of 2⁻¹⁶.)
    """
    if not training or p == 0:
        return x
    if _is_left_to_torch(x):
        return F.dropout(x, p)
    result: Tensor = _Dropout.apply(x, p)
    return result


def add_dropout(residual: Tensor, x: Tensor, p: float, training: bool) -> Tensor:
    """`residual + dropout(x)` in one pass; both of one shape."""
    if not training or p == 0 or _is_left_to_torch(x) or residual.dtype != x.dtype:
        return residual + dropout(x, p, training)
    result: Tensor = _AddDropout.apply(residual, x, p)
    return result


def _is_left_to_torch(x: Tensor) -> bool:
    return x.device.type != "cpu" or is_traced()


def _draw(like: Tensor, p: float) -> tuple[Tensor, float]:
    """1 where an element is kept and 0 elsewhere, and the factor for the kept ones."""
    lane, levels = (torch.int8, 2**8) if 2**-8 <= p <= 1 - 2**-8 else (torch.int16, 2**16)
    lower = int(p * levels)
    steps = min(lower + (torch.rand(()).item() < p * levels - lower), levels - 1)
    lanes = 8 // lane.itemsize
    bits = torch.empty((like.numel() + lanes - 1) // lanes, dtype=torch.int64).random_(-(2**63), None)
    # The comparison writes 0 and 1 in the dtype of x: masks of bool multiply and fill several times slower.
    kept = torch.empty(like.numel(), dtype=like.dtype)
    torch.ge(bits.view(lane)[: like.numel()], steps - levels // 2, out=kept)
    return kept.view(like.shape), levels / (levels - steps)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        kept, ctx.scale = _draw(x, p)
        ctx.save_for_backward(kept)
        return (x * kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return (grad * kept).mul_(ctx.scale), None


class _AddDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, p: float) -> Tensor:
        kept, ctx.scale = _draw(x, p)
        ctx.save_for_backward(kept)
        return torch.addcmul(residual, x, kept, value=ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (kept,) = ctx.saved_tensors
        return grad, (grad * kept).mul_(ctx.scale), None
