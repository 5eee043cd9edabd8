"""softmax(scale · Q Kᵀ + bias) · V through `scaled_dot_product_attention`: fused, memory linear in length.

A key bias is one more column: 1 in the query, the bias in the key. It is never passed as `attn_mask`: with a gradient
there, the fused kernel gives way to one that stores (B, H, T, S).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..logits import InnerLogits
from .eager import allowed_keys

__all__ = ["inner_attention"]


def inner_attention(
    logits: InnerLogits,
    value: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool,
    query_offset: int,
    dropout_p: float,
    attn_bias: Tensor | None = None,
) -> Tensor:
    """softmax(logits + attn_bias) · value; arguments as in `attend`, no gradient for attn_bias, (H, T, S) or with B."""
    batch, _, columns, width = value.shape
    query, key = logits.query.to(value.dtype), logits.key.to(value.dtype)
    rows = query.shape[-2]
    if logits.bias is not None:
        query, column = query * logits.scale, logits.bias.to(value.dtype)[None, :, :, None]
        query = torch.cat([query, query.new_ones(1).expand(*query.shape[:-1], 1)], dim=-1)
        key = torch.cat([key, column.expand(*key.shape[:-1], 1)], dim=-1)
    key = key.expand(batch, -1, -1, -1)
    # Fused kernels want one width for all three; those of a GPU a multiple of eight, or they store (B, H, T, S).
    widest = max(query.shape[-1], width)
    if value.device.type != "cpu":
        widest = -(-widest // 8) * 8
    query, key, value = (
        x if x.shape[-1] == widest else F.pad(x, (0, widest - x.shape[-1])) for x in (query, key, value)
    )
    causal = False
    # A branch, not its condition: where sizes are symbols, in compiled code, that is no bool to the fused kernel.
    if is_causal and attention_mask is None and attn_bias is None and query_offset == 0 and rows == columns:
        causal = True
    mask = empty = None
    if not causal:
        mask = allowed_keys(rows, columns, attention_mask, is_causal, query_offset, value.device)
    # Rows that see no key get all of them, and zeros afterwards: a NaN would reach the gradients.
    if attn_bias is not None:
        bias = (attn_bias if attn_bias.dim() == 4 else attn_bias[None]).to(value.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
        empty = (mask == -torch.inf).all(dim=-1, keepdim=True)
        mask = mask.masked_fill(empty, 0)
    elif mask is not None and attention_mask is not None:
        empty = ~mask.any(dim=-1, keepdim=True)
        mask = mask | empty
    scale = 1.0 if logits.bias is not None else logits.scale
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout_p, is_causal=causal, scale=scale
    )
    out = out if widest == width else out[..., :width]
    return out if empty is None else out.masked_fill(empty, 0)
