"""The projections round attention: from the input to the heads, and from the heads to the output.

A layer's in_proj has the rows of the values first, then those of what its function wants of the input.

Shape legend: B batch, H heads, L slots, K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .linear import is_plain
from .packing import Packing
from .synthesizers.base import split_heads

__all__ = [
    "head_width",
    "project",
    "project_out",
    "project_packed",
    "project_values",
    "project_widened",
    "reset_projections",
]


def head_width(d_model: int, num_heads: int, head_dim: int | None, dropout: float) -> int:
    """K: as given, or d_model / H.

    Raises:
        ValueError: sizes that do not fit, or no probability of dropout.
    """
    if d_model < 1 or num_heads < 1 or (head_dim is None and d_model % num_heads):
        raise ValueError(
            f"got d_model={d_model}, num_heads={num_heads}; expected a width that the heads divide, or head_dim"
        )
    if head_dim is not None and head_dim < 1:
        raise ValueError(f"got head_dim={head_dim}; expected at least 1")
    if not 0 <= dropout < 1:
        raise ValueError(f"got dropout={dropout}; expected a probability in [0, 1)")
    return d_model // num_heads if head_dim is None else head_dim


def reset_projections(in_proj: nn.Linear, out_proj: nn.Linear) -> None:
    """Initialise both projections."""
    # Blocks of d_model → H·K features each, so that fusing them does not change their initialisation.
    # A weight that came from a checkpoint is marked by transformers; its slices are not, and would be overwritten.
    if not getattr(in_proj.weight, "_is_hf_initialized", False):
        for rows in in_proj.weight.split(out_proj.in_features):
            nn.init.xavier_uniform_(rows)
    nn.init.xavier_uniform_(out_proj.weight)
    for linear in (in_proj, out_proj):
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def project(
    in_proj: nn.Linear, x: Tensor, value: Tensor | None, packing: Packing | None, heads: int, widths: Sequence[int]
) -> tuple[Tensor, Sequence[Tensor]]:
    """The values (B, H, L, K), of `value` or else of x, and what the function wants of x, (B, L, width) for each width.

    Args:
        packing: how to project real tokens only: x and value are the input, the results are aligned and zero at
            padding.
    """
    if packing is not None:
        x, value = packing.pack(x), None if value is None else packing.pack(value)
    if value is None:
        both = in_proj(x)
    elif not is_plain(in_proj):
        inner = in_proj.out_features - sum(widths)
        both = torch.cat([in_proj(value)[..., :inner], in_proj(x)[..., inner:]], dim=-1)
    else:
        # The rows of the values come first.
        weight, bias, inner = in_proj.weight, in_proj.bias, in_proj.weight.shape[0] - sum(widths)
        values = F.linear(value, weight[:inner], None if bias is None else bias[:inner])
        projected = F.linear(x, weight[inner:], None if bias is None else bias[inner:])
        both = torch.cat([values, projected], dim=-1)
    both = both if packing is None else packing.pad_aligned(both)
    # All parts in one go: the backward of each split is a copy.
    values, *inputs = both.split([both.shape[-1] - sum(widths), *widths], dim=-1)
    return split_heads(values, heads), inputs


def project_widened(
    in_proj: nn.Linear, x: Tensor, packing: Packing | None, heads: int
) -> tuple[Tensor, Sequence[Tensor]]:
    """As `project`, with a constant feature in every head: values (B, H, L, K + 1), 0 in it; input with 1 in it."""
    if packing is not None:
        x = packing.pack(x)
    shape = (2, heads, in_proj.out_features // (2 * heads))
    weight = F.pad(in_proj.weight.unflatten(0, shape), (0, 0, 0, 1)).flatten(0, 2)
    bias = weight.new_zeros(shape) if in_proj.bias is None else in_proj.bias.unflatten(0, shape)
    bias = torch.stack([F.pad(bias[0], (0, 1)), F.pad(bias[1], (0, 1), value=1.0)]).flatten()
    both = F.linear(x, weight, bias)
    both = both if packing is None else packing.pad_aligned(both)
    values, hidden = both.chunk(2, dim=-1)
    return split_heads(values, heads), [hidden]


def project_values(in_proj: nn.Linear, x: Tensor, packing: Packing | None, heads: int) -> Tensor:
    """The values alone, (B, H, L, K), laid out as (H, K, B, L): the shared kernel multiplies them as they are.

    (If `in_proj` is a plain projection; else laid out as usual.)
    """
    if not is_plain(in_proj):
        return project(in_proj, x, None, packing, heads, ())[0]
    batch, length, d_model = x.shape
    weight, bias = in_proj.weight, in_proj.bias
    tokens = (x.reshape(-1, d_model) if packing is None else packing.pack(x)).t()
    if torch.is_autocast_enabled(x.device.type) or bias is None:
        values = weight @ tokens
        values = values if bias is None else values + bias[:, None].to(values.dtype)
    else:
        values = torch.addmm(bias[:, None], weight, tokens)
    values = values if packing is None else packing.pad_columns(values)
    return values.view(heads, weight.shape[0] // heads, batch, length).permute(2, 0, 3, 1)


def project_packed(out_proj: nn.Linear, y: Tensor, packing: Packing, heads: int = 1) -> Tensor:
    """The output projection of the real tokens of an aligned (B, L, H·K), in the input's slots, zeros between."""
    # The shared kernel writes feature by feature.
    by_feature = y.stride(1) == 1 and y.shape[-1] > 1
    tokens = packing.pack_columns(y.permute(2, 0, 1)).t() if by_feature else packing.pack_aligned(y)
    return packing.pad(project_out(out_proj, tokens, heads))


def project_out(out_proj: nn.Linear, y: Tensor, heads: int) -> Tensor:
    """(…, H·K), or with a constant feature (…, H·(K + 1)), to (…, d_model)."""
    if y.shape[-1] == out_proj.in_features:
        projected: Tensor = out_proj(y)
        return projected
    weight = F.pad(out_proj.weight.unflatten(1, (heads, -1)), (0, 1)).flatten(1)
    return F.linear(y, weight, out_proj.bias)
