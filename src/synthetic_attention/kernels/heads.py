"""From projections to heads and back, in the memory layout that the kernels read and write.

Shape legend: B batch, H heads, T tokens of a row, n real tokens, K width of a head, C features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..layout import TokenLayout
from .matmul import is_fast, is_plain, onednn_linear

# Up to this many slots in a row, values by feature are projected with their padding: moving them costs more.
_SHORT_ROW = 128


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, H·K) to (B, H, T, K)."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def project_by_feature(module: Any, tokens: Tensor, layout: TokenLayout, heads: int) -> Tensor:
    """The values (B, H, T, K) of tokens as in `layout.pack`, laid out as (H, K, B, T) if the projection is plain."""
    if not is_plain(module):
        return split_heads(layout.pad(module(tokens)), heads)
    weight, bias, real = module.weight, module.bias, layout.real_tokens
    if real is not None and real.aligned_shape[1] < _SHORT_ROW:
        tokens, real = layout.pad(tokens), None
    rows = tokens.reshape(-1, tokens.shape[-1])
    columns = rows.t()
    if is_fast(weight.detach(), rows):
        values = onednn_linear(weight, rows)
        values = values if bias is None else values + bias[:, None]
    elif torch.is_autocast_enabled(tokens.device.type) or bias is None:
        values = weight @ columns
        values = values if bias is None else values + bias[:, None].to(values.dtype)
    else:
        values = torch.addmm(bias[:, None], weight, columns)
    if real is not None:
        values = real.put_columns(values)
    return values.view(heads, weight.shape[0] // heads, *layout.aligned.shape).permute(2, 0, 3, 1)


def join_heads(y: Tensor, layout: TokenLayout) -> Tensor:
    """(B, H, T, K) to the input of the output projection, (1, n, H·K) or (B, T, H·K) as in `layout.pack`."""
    y = y.transpose(1, 2).flatten(2)
    if (real := layout.real_tokens) is None:
        return y
    # The kernel for shared logits writes feature by feature.
    by_feature = y.stride(1) == 1 and y.shape[-1] > 1
    return real.take_columns(y.permute(2, 0, 1)).t()[None] if by_feature else real.take(y, aligned=True)
