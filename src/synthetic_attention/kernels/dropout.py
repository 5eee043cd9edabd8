"""Dropout from eight random bits per element on the CPU, where random numbers are the cost of dropout."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..layout import is_traced

# The values of the 8 random bits of an element.
_LEVELS = 256


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout as `F.dropout`, faster on a CPU.

    PyTorch draws one double for each element, on one core, a good part of a training step of a narrow model. Here
    each element gets 8 bits of a random int64. So the probability of a call is one of the two multiples of 2⁻⁸ around
    p, drawn such that it is p on average, and the scale is the one that fits it.
    """
    if not training or p == 0:
        return x
    if _is_left_to_torch(x, p):
        return F.dropout(x, p)
    kept, scale = _draw(x, p)
    return (x * kept).mul_(scale)


def add_dropout(residual: Tensor, x: Tensor, p: float, training: bool) -> Tensor:
    """`residual + dropout(x)` in one pass; both of one shape."""
    if not training or p == 0:
        return residual + x
    if _is_left_to_torch(x, p) or residual.dtype != x.dtype:
        return residual + dropout(x, p, training)
    kept, scale = _draw(x, p)
    return torch.addcmul(residual, x, kept, value=scale)


def _is_left_to_torch(x: Tensor, p: float) -> bool:
    return x.device.type != "cpu" or not 1 <= p * _LEVELS <= _LEVELS - 1 or is_traced()


def _draw(like: Tensor, p: float) -> tuple[Tensor, float]:
    """1 where an element is kept and 0 elsewhere, and the factor for the kept ones."""
    lower = int(p * _LEVELS)
    # How many values drop an element: one more as often as p needs it, but never all.
    dropped = min(lower + (torch.rand(()).item() < p * _LEVELS - lower), _LEVELS - 1)
    bits = torch.empty((like.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    # The comparison writes 0 and 1 in the dtype of x: masks of bool multiply and fill several times slower.
    kept = torch.empty(like.numel(), dtype=like.dtype)
    torch.ge(bits.view(torch.int8)[: like.numel()], dropped - _LEVELS // 2, out=kept)
    return kept.view(like.shape), _LEVELS / (_LEVELS - dropped)


def philox_uniform(seed: Tensor, place: Tensor) -> Tensor:
    """`tl.rand(seed, place)` of Triton: numbers in [0, 1) of Philox-4×32-10, of int64 tensors that broadcast."""
    low, zero = 2**32 - 1, torch.zeros_like(place)
    c0, c1, c2, c3 = place & low, zero, zero, zero
    k0, k1 = seed & low, seed >> 32 & low
    for _ in range(10):
        # The 64 bits of the products of unsigned numbers: int64 drops what is above.
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32 & low) ^ c1 ^ k0, b & low, (a >> 32 & low) ^ c3 ^ k1, a & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return torch.where(c0 > low // 2, low - c0, c0).float() * 4.6566127342e-10
