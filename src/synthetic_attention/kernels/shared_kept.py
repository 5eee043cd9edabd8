"""softmax(R) · V in inference, where softmax(R) is kept for the next call.

Shape legend: B batch, H heads, T queries, S keys, D width of a value, N = D·B.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..logits import Kept
from .block import block_softmax, wide
from .shared import shared_attention
from .shared_blocks import block_scores, blocks, needs_care, nonzero

__all__ = ["kept_attention"]


def kept_attention(
    kept: Kept, scores: Tensor, value: Tensor, mask: Tensor | None, offset: int | None, value_is_masked: bool
) -> Tensor:
    """`shared_attention` in inference, where softmax(scores) is kept for the next call.

    A mask changes only the denominators, Y = P (m ∘ V) / P m with P = softmax(R), for any m: P is as good as E.
    """
    if mask is not None and _kept_needs_care(kept, scores, value):
        return shared_attention(scores, value, mask, offset is not None, offset or 0, None, value_is_masked)
    with torch.autocast(value.device.type, enabled=False):
        if offset not in kept:
            kept[offset] = _softmax(scores, offset)
        return _attend(kept[offset], value, mask, offset, value_is_masked)


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


def _kept_needs_care(kept: Kept, scores: Tensor, value: Tensor) -> bool:
    asked = "needs care", value.dtype
    if asked not in kept:
        kept[asked] = needs_care(scores, value)
    return bool(kept[asked])


def _softmax(scores: Tensor, offset: int | None) -> Tensor:
    """All weights (H, T, S), zeros where a causal row sees nothing."""
    weights = torch.empty(scores.shape, dtype=wide(scores), device=scores.device)
    for h, t, last in blocks(scores, offset):
        weights[h, t, :last] = block_softmax(block_scores(scores, h, t, last, offset))
        weights[h, t, last:] = 0
    return weights
