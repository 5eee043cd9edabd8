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


def inner_attention(
    logits: InnerLogits, bias: Tensor | None, value: Tensor, mask: Tensor | None, offset: int | None, dropout_p: float
) -> Tensor:
    """softmax(logits + bias) · value; arguments as in `attend`, row t sees keys ≤ offset + t.

    `bias` is (H, T, S) or (B, H, T, S) and gets no gradient.
    """
    batch, _, columns, width = value.shape
    # For values that are laid out by feature the fused kernel would store (B, H, T, S).
    value = value if value.stride(-1) == 1 else value.contiguous()
    query, key = logits.query.to(value.dtype), logits.key.to(value.dtype)
    rows = query.shape[-2]
    if logits.bias is not None:
        query, column = query * logits.scale, logits.bias.to(value.dtype)[None, :, :, None]
        query = torch.cat([query, query.new_ones(1).expand(*query.shape[:-1], 1)], dim=-1)
        key = torch.cat([key, column.expand(*key.shape[:-1], 1)], dim=-1)
    key = key.expand(batch, -1, -1, -1)
    # Fused kernels want one width for all three, on a GPU a multiple of eight; else they store (B, H, T, S).
    widest = max(query.shape[-1], width)
    if value.device.type != "cpu":
        widest = -(-widest // 8) * 8
    query, key, value = (
        x if x.shape[-1] == widest else F.pad(x, (0, widest - x.shape[-1])) for x in (query, key, value)
    )
    causal, allowed, empty = False, None, None
    # A branch, not its condition: where sizes are symbols, in compiled code, that is no bool to the fused kernel.
    if mask is None and bias is None and offset == 0 and rows == columns:
        causal = True
    else:
        allowed = allowed_keys(rows, columns, mask, offset, value.device)
    # Rows that see no key get all of them, and zeros afterwards: a NaN would reach the gradients.
    if bias is not None:
        bias = (bias if bias.dim() == 4 else bias[None]).to(value.dtype)
        allowed = bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)
        empty = (allowed == -torch.inf).all(dim=-1, keepdim=True)
        allowed = allowed.masked_fill(empty, 0)
    elif allowed is not None and mask is not None:
        empty = ~allowed.any(dim=-1, keepdim=True)
        allowed = allowed | empty
    scale = 1.0 if logits.bias is not None else logits.scale
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=allowed, dropout_p=dropout_p, is_causal=causal, scale=scale
    )
    out = out if widest == width else out[..., :width]
    return out if empty is None else out.masked_fill(empty, 0)
