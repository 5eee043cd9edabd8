"""softmax(logits) as a whole matrix: for decoding steps, for weights, and as the reference of the kernels.

Shape legend: B batch, H heads, T queries, S keys, D width of a value.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..layout import is_traced
from ..logits import GroupedLogits, Logits, shared_product


def allowed_keys(
    rows: int, columns: int, attention_mask: Tensor | None, offset: int | None, device: torch.device
) -> Tensor | None:
    """True where a row may see a key: (B or 1, 1, rows or 1, columns); None where every key is allowed.

    Row t sees keys ≤ offset + t, or with None all.
    """
    allowed = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
    # An exported graph takes any offset.
    if offset is not None and (torch.compiler.is_exporting() or offset < columns - 1):
        last_key = torch.arange(rows, device=device)[:, None] + offset
        causal = (torch.arange(columns, device=device) <= last_key)[None, None]
        allowed = causal if allowed is None else allowed & causal
    return allowed


def masked_softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Softmax over the last axis, in float32 or higher; rows where nothing is allowed, or all is −inf, are zeros."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if not scores.shape[-1]:
        return scores
    # In inference on a CPU code may branch on values: this does not wait for a device.
    if allowed is None and scores.device.type == "cpu" and not torch.is_grad_enabled() and not is_traced():
        weights = torch.softmax(scores, dim=-1)
        # A row of −inf gives NaN in every column. One column is checked: masking all of them would take longer.
        if not bool(weights[..., 0].isnan().any()):
            return weights
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    empty = scores.amax(dim=-1, keepdim=True) == -torch.inf
    return torch.softmax(scores.masked_fill(empty, 0), dim=-1).masked_fill(empty, 0)


def attention_weights(
    logits: Logits, attention_mask: Tensor | None = None, is_causal: bool = False, query_offset: int = 0
) -> Tensor:
    """The attention weights themselves, softmax(logits) under the masks: the paper's equation as it is written.

    Args:
        logits: T rows and S columns in any form. (The outer form may have more columns than there are
            keys: cut it first, to `SharedLogits(logits.dense(S))`.)
        attention_mask: (B, S), 1/True at the keys that may be seen.
        is_causal: row t sees keys ≤ query_offset + t.
        query_offset: position of the first row.

    Returns:
        (B, H, T, S), or (1, H, T, S) where neither the logits nor the mask differ by example.
    """
    return _weights(logits.dense(), attention_mask, query_offset if is_causal else None)


def _weights(scores: Tensor, mask: Tensor | None, offset: int | None) -> Tensor:
    scores = scores if len(scores.shape) == 4 else scores[None]
    rows, columns = scores.shape[-2:]
    return masked_softmax(scores, allowed_keys(rows, columns, mask, offset, scores.device))


def eager_attention(logits: Logits, value: Tensor, mask: Tensor | None, offset: int | None, dropout_p: float) -> Tensor:
    """softmax(logits) · value through the whole matrix; arguments as in `attend`, row t sees keys ≤ offset + t."""
    return sum_values(logits, _weights(logits.dense(value.shape[-2]), mask, offset), value, dropout_p)


def sum_values(logits: Logits, weights: Tensor, value: Tensor, dropout_p: float = 0.0) -> Tensor:
    """weights (B or 1, H, T, S), of `logits`, times value (B, H or G, S, D), with dropout of the weights.

    Where all examples share the logits they share the dropout mask, even under key masks of their own.
    """
    if dropout_p > 0:
        groups: tuple[Logits, ...] = (logits,)
        sizes: tuple[int, ...] = (weights.shape[1],)
        if isinstance(logits, GroupedLogits):
            groups, sizes = logits.groups, logits.sizes
        pairs = zip(groups, weights.split(sizes, dim=1), strict=True)
        drawn_for = [(part, part[:1] if group.is_shared else part) for group, part in pairs]
        weights = torch.cat([x * F.dropout(torch.ones_like(like), dropout_p) for x, like in drawn_for], dim=1)
    return shared_product(weights.to(value.dtype), value)
