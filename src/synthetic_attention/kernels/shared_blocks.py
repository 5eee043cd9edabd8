"""Blocks of the scores R that all examples share, and what is asked of them.

Shape legend: H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .block import block_bytes, wide

__all__ = ["block_scores", "blocks", "exponentials", "needs_care", "nonzero"]

# E under a mask cannot vanish while a row's scores differ by less than this: exp(−60) is far from the end of float32.
SAFE_RANGE = 60.0


def blocks(scores: Tensor, offset: int | None) -> Iterator[tuple[slice, slice, int]]:
    """Heads, rows and number of columns of blocks: whole heads if they fit, else rows of a head.

    Causal blocks (offset given) are of rows always, cut after the last key that they see.
    """
    heads, rows, columns = scores.shape
    size, most = max(4, scores.element_size()), block_bytes(scores.device)
    step = rows if size * rows * columns <= most else max(64, most // (size * columns))
    if offset is not None:
        step = min(step, max(64, rows // 4))
    per_head = max(1, most // (size * step * columns))
    for h in range(0, heads, per_head):
        for t in range(0, rows, step):
            stop = min(t + step, rows)
            last = columns if offset is None else min(columns, max(offset + stop, 1))
            yield slice(h, min(h + per_head, heads)), slice(t, stop), last


def block_scores(scores: Tensor, h: slice, t: slice, last: int, offset: int | None) -> Tensor:
    """A block of R in float32 or higher, −inf where it is not allowed; not to be written to."""
    block = scores[h, t, :last].to(wide(scores))
    if offset is None or offset + t.start >= last - 1:
        return block
    # Only the last columns of the block hold keys that some of its rows may not see.
    first = max(0, offset + t.start + 1)
    rows, columns = block.shape[1], last - first
    hidden = torch.full((rows, columns), -torch.inf, dtype=block.dtype, device=block.device)
    block = block.clone()
    block[:, :, first:] += hidden.triu(offset + t.start + 1 - first)
    return block


def exponentials(block: Tensor) -> Tensor:
    """exp(R − rowmax); 0 in rows with nothing allowed."""
    maximum = block.amax(dim=-1, keepdim=True)
    return (block - maximum.masked_fill_(maximum == -torch.inf, 0)).exp_()


def needs_care(scores: Tensor, value: Tensor) -> bool:
    """Could a mask leave a row only keys whose E has vanished beside the row's maximum?"""
    # E is multiplied in the dtype of the values, and float16 ends at exp(−17).
    if value.dtype == torch.float16:
        return True
    # Two passes: aminmax over one axis takes ten times as long as both.
    return not bool((scores.amax(dim=-1) - scores.amin(dim=-1) < SAFE_RANGE).all())


def nonzero(norm: Tensor) -> Tensor:
    """Denominators with 1 in rows that see no key, where the numerator is 0."""
    return norm.masked_fill(norm == 0, 1)
