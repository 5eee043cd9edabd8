"""Weighted sums over a window round each token: the product in the convolutions.

Shape legend: B batch, H heads, T tokens, C tokens in a window, K width of a head, R rows of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["place_weights", "window_sum"]

# Rows of a block, at least: fewer make small products, more make the band wide.
_ROWS = 32


def window_sum(weights: Tensor, padded: Tensor) -> Tensor:
    """y[t] = Σ_c weights[t, c] · padded[t + c].

    Weights stand in a band of a matrix, and blocks of its rows are multiplied with the values that they reach. So the
    work and the memory are linear in T, and the products are matrix products.

    Args:
        weights: (B, H, T, C), or (H, C) for the same at every token.
        padded: (B, H, T + C − 1, K), the values with what is before and after them.

    Returns:
        (B, H, T, K).
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


def place_weights(weights: Tensor, slots: Tensor, columns: int) -> Tensor:
    """Weights of windows as a matrix over all slots.

    Args:
        weights: (B or 1, H, T, C).
        slots: (B or 1, T, C), the slot of each; −1 for none.

    Returns:
        (B, H, T, columns).
    """
    batch, heads = max(weights.shape[0], slots.shape[0]), weights.shape[1]
    slots = slots[:, None].expand(batch, heads, -1, -1)
    matrix = weights.new_zeros(*slots.shape[:3], columns + 1)
    matrix = matrix.scatter(-1, torch.where(slots < 0, columns, slots), weights.expand(batch, -1, -1, -1))
    return matrix[..., :columns]
