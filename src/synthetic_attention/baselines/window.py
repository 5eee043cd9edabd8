"""Layers that sum the values of a window around each token: the convolutions and local dense attention.

A window is centred, or ends with its token where the layer is causal.

Shape legend: B batch, H heads, T tokens, S slots, C tokens in a window, K width of a head, R rows of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..layout import TokenLayout
from .base import Baseline, Sum

# Rows of a block, at least: fewer make small products, more make the band wide.
_ROWS = 32


class WindowLayer(Baseline):
    """A weighted sum of values over a window; a subclass makes the values and the weights.

    Attributes:
        kernel_size: C, tokens in a window.
        only_inside: whether weights are normalised over the tokens inside the sequence.
    """

    kernel_size: int
    only_inside: ClassVar[bool] = False

    def _shares(self, logits: Sequence[Tensor], inside: Tensor | None) -> Tensor:
        """The weights of the windows, before dropout: (B, H, T, C), or (H, C) for all alike.

        `logits` are the second projection of `_read`, (B, T, H·C), if there is one; `inside` (B or 1, T, C) is True
        where a window has a token, None where that is not needed.
        """
        raise NotImplementedError

    def _sum(self, value: Tensor, parts: list[Tensor], layout: TokenLayout, is_causal: bool, need_weights: bool) -> Sum:
        rows, columns = layout.aligned.shape[1], value.shape[2]
        # If kernel_size is even, one more token comes after the middle than before it.
        before = self.kernel_size - 1 if is_causal else (self.kernel_size - 1) // 2
        has_gaps = layout.has_past and (layout.mask is not None or layout.slots is not None)
        # The sizes of blocks would bind an exported graph to some lengths.
        has_gaps = has_gaps or torch.compiler.is_exporting()
        needs_slots = need_weights or self.only_inside or has_gaps
        slots = self._window_slots(layout, before, value) if needs_slots else None
        shares = self._shares(parts, None if slots is None else slots >= 0)
        dropped = F.dropout(shares, self.dropout, self.training)
        if has_gaps and slots is not None:
            y = _gathered_sum(_each(dropped, rows), value, slots)
        else:
            first = columns - rows - before
            padding = (0, 0, max(0, -first), self.kernel_size - 1 - before)
            y = _window_sum(dropped, F.pad(value[:, :, max(0, first) :], padding))
        if not need_weights or slots is None:
            return y, None
        return y, _place_weights(_each(shares, rows), slots, columns).expand(value.shape[0], -1, -1, -1)

    def _window_slots(self, layout: TokenLayout, before: int, value: Tensor) -> Tensor:
        """(B or 1, T, C): the slots of the tokens in the window of each new one; −1 where there are none."""
        steps = torch.arange(self.kernel_size, device=value.device) - before
        slots = layout.positions.queries(value.device)[..., None] + steps
        slots = slots if slots.dim() == 3 else slots[None]
        mask = layout.aligned.mask
        inside = (slots >= 0) & (slots < (value.shape[2] if mask is None else mask.sum(1)[:, None, None]))
        if layout.has_past and layout.mask is not None:
            last = value.shape[2] - 1
            slots = layout.token_slots.gather(1, slots.clamp(0, last).flatten(1)).view_as(slots)
        return torch.where(inside, slots, -1)


def _each(weights: Tensor, rows: int) -> Tensor:
    """(B or 1, H, T, C), the weights of each token."""
    return weights if weights.dim() == 4 else weights[None, :, None].expand(-1, -1, rows, -1)


def _gathered_sum(weights: Tensor, values: Tensor, slots: Tensor) -> Tensor:
    """(B, H, T, K): the values (B, H, S, K) at slots (B or 1, T, C), summed with weights (B or 1, H, T, C)."""
    batch, heads, _, features = values.shape
    where = slots.clamp_min(0).expand(batch, -1, -1)
    picked = where.flatten(1)[:, :, None, None].expand(-1, -1, heads, features)
    taken = values.transpose(1, 2).gather(1, picked).unflatten(1, where.shape[1:]).permute(0, 3, 1, 2, 4)
    weights = weights.masked_fill((slots < 0)[:, None], 0)
    return (weights[..., None, :] @ taken).squeeze(-2)


def _window_sum(weights: Tensor, padded: Tensor) -> Tensor:
    """y[t] = Σ_c weights[t, c] · padded[t + c], (B, H, T, K).

    Weights (B, H, T, C), or (H, C) for all tokens alike, stand in a band of a matrix; blocks of its rows are multiplied
    with the padded values (B, H, T + C − 1, K) that they reach. So work and memory are linear in T.
    """
    width = weights.shape[-1]
    batch, heads, reach, features = padded.shape
    rows = reach - width + 1
    block = max(_ROWS, width)
    if rows <= 2 * block:
        block, count = rows, 1
        windows = padded[:, :, None]
    else:
        count = -(-rows // block)
        # A block reaches into the next one, and no further.
        padded = F.pad(padded, (0, 0, 0, (count + 1) * block - reach))
        blocks = padded.unflatten(2, (count + 1, block))
        windows = torch.cat([blocks[:, :, :-1], blocks[:, :, 1:, : width - 1]], dim=3)
    if weights.dim() == 2:
        band = _band(weights[:, None].expand(-1, block, -1))
        # (H, R, R + C − 1) × (H, R + C − 1, B · blocks · K): one product for the whole batch.
        columns = windows.permute(1, 3, 0, 2, 4).reshape(heads, band.shape[-1], -1)
        product = torch.bmm(band, columns).view(heads, block, batch, count, features)
        return product.permute(2, 0, 3, 1, 4).flatten(2, 3)[:, :, :rows]
    weights = F.pad(weights, (0, 0, 0, count * block - rows)).unflatten(2, (count, block))
    band = _band(weights).flatten(0, 2)
    product = torch.bmm(band, windows.reshape(-1, *windows.shape[3:]))
    return product.view(batch, heads, count * block, features)[:, :, :rows]


def _band(weights: Tensor) -> Tensor:
    """(…, R, C) to (…, R, R + C − 1): row r begins at column r, zeros elsewhere."""
    rows, width = weights.shape[-2:]
    # In memory a row that is one shorter begins one later.
    skewed = F.pad(weights, (0, rows)).flatten(-2)[..., : rows * (rows + width - 1)]
    return skewed.unflatten(-1, (rows, rows + width - 1))


def _place_weights(weights: Tensor, slots: Tensor, columns: int) -> Tensor:
    """(B, H, T, columns) from the weights (B or 1, H, T, C) at slots (B or 1, T, C), −1 for none."""
    batch, heads = torch.broadcast_shapes(weights.shape[:1], slots.shape[:1])[0], weights.shape[1]
    slots = slots[:, None].expand(batch, heads, -1, -1)
    matrix = weights.new_zeros(*slots.shape[:3], columns + 1)
    matrix = matrix.scatter(-1, torch.where(slots < 0, columns, slots), weights.expand(batch, -1, -1, -1))
    return matrix[..., :columns]
