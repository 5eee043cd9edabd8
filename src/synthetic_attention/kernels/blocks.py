"""Helpers shared by the blockwise kernels: the size of a block, its softmax, products in a wider dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["add_product", "block_bytes", "block_softmax", "refuse_second_derivative", "wide"]

# On a CPU torch.softmax takes several times as long as its parts where rows are this short.
SHORT_ROW = 48


def block_bytes(device: torch.device) -> int:
    """Bytes of scores to work on at a time: on a CPU few enough for its cache, elsewhere enough to fill the device."""
    return 2 << 20 if device.type == "cpu" else 64 << 20


def wide(tensor: Tensor) -> torch.dtype:
    """The dtype to add up in: at least float32."""
    return torch.promote_types(tensor.dtype, torch.float32)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, batches of matrices, where total may be wider."""
    if total.dtype == a.dtype:
        total.baddbmm_(a, b)
    else:
        total += torch.bmm(a, b)


def block_softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis; rows of −inf become zeros.

    Args:
        scores: (…, T, S) in float32 or higher.
    """
    if scores.device.type != "cpu":
        empty = scores.amax(dim=-1, keepdim=True) == -torch.inf
        return torch.softmax(scores.masked_fill(empty, 0), dim=-1).masked_fill_(empty, 0)
    if scores.shape[-1] <= SHORT_ROW:
        highest = scores.amax(dim=-1, keepdim=True)
        exponentials = (scores - highest.masked_fill_(highest == -torch.inf, 0)).exp_()
        total = exponentials.sum(dim=-1, keepdim=True)
        return exponentials.div_(total.masked_fill_(total == 0, 1))
    weights = torch.softmax(scores, dim=-1)
    # A row of −inf comes out as NaN: few masks have one, and asking costs less than a pass over the scores.
    if bool(weights[..., 0].isnan().any()):
        weights.masked_fill_((scores == -torch.inf).all(dim=-1, keepdim=True), 0)
    return weights


def refuse_second_derivative(ctx: Any, *grads: Any) -> None:
    """The backward of a backward.

    Raises:
        RuntimeError: always, with the way out.
    """
    raise RuntimeError(
        "got a second derivative of attention; its fast kernels have the first only. Compute the output under `with "
        "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):`, or use torch.func"
    )
