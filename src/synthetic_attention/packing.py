"""Real tokens without the padding between them, so that projections compute nothing for padding.

A padded batch (B, L, …) and its n real tokens side by side (n, …) hold the same; `Packing` moves between the two. It
aligns on the way: whatever slots a row's tokens stand in, in the padded batch that the kernels see they come first.
Both directions are each other's gradient.

Shape legend: B batch, L slots of a row, n real tokens, C features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Packing"]


@dataclass(frozen=True, eq=False)
class Packing:
    """Where the real tokens of a batch are.

    Attributes:
        batch, slots: B and L.
        lengths: real tokens of each row.
        given: (n,), their places among the B·L of the input, row by row.
        aligned: (n,), their places once every row starts with its real tokens.
    """

    batch: int
    slots: int
    lengths: tuple[int, ...]
    given: Tensor
    aligned: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> Packing:
        """Read a mask (B, L), True at real tokens. Waits for the device that it is on."""
        batch, slots = mask.shape
        counts = mask.sum(1)
        aligned = torch.arange(slots, device=mask.device) < counts[:, None]
        given, front = (x.flatten().nonzero().squeeze(1) for x in (mask, aligned))
        return cls(batch, slots, tuple(counts.tolist()), given, front)

    def pack(self, x: Tensor) -> Tensor:
        """The real tokens (n, C) of the input (B, L, C)."""
        return _take(_Rows, x.flatten(0, 1), self.given, self)

    def pad(self, tokens: Tensor) -> Tensor:
        """(n, C) to (B, L, C) in the input's slots, zeros between."""
        return _put(_Rows, tokens, self.given, self).unflatten(0, (self.batch, self.slots))

    def pack_aligned(self, x: Tensor) -> Tensor:
        """The real tokens (n, C) of an aligned (B, L, C)."""
        return _take(_Rows, x.flatten(0, 1), self.aligned, self)

    def pad_aligned(self, tokens: Tensor) -> Tensor:
        """(n, C) to an aligned (B, L, C), zeros behind each row's tokens."""
        return _put(_Rows, tokens, self.aligned, self).unflatten(0, (self.batch, self.slots))

    def pack_columns(self, x: Tensor) -> Tensor:
        """The real tokens (C, n) of an aligned (C, B, L)."""
        return _take(_Columns, x, self.aligned, self)

    def pad_columns(self, tokens: Tensor) -> Tensor:
        """(C, n) to an aligned (C, B, L), zeros behind each row's tokens."""
        return _put(_Columns, tokens, self.aligned, self)

    def spans(self) -> Iterator[tuple[int, slice, int]]:
        """Each row's number, its tokens among the n, and how many they are."""
        start = 0
        for row, length in enumerate(self.lengths):
            yield row, slice(start, start + length), length
            start += length


class _Rows:
    """Tokens one under the other, (tokens, C)."""

    @staticmethod
    def take(x: Tensor, places: Tensor, packing: Packing) -> Tensor:
        return x.index_select(0, places)

    @staticmethod
    def put(tokens: Tensor, places: Tensor, packing: Packing) -> Tensor:
        padded = tokens.new_zeros(packing.batch * packing.slots, tokens.shape[1])
        return padded.index_copy_(0, places, tokens)


class _Columns:
    """Tokens side by side, (C, tokens). Copied row by row of the batch: an index would copy number by number."""

    @staticmethod
    def take(x: Tensor, places: Tensor, packing: Packing) -> Tensor:
        tokens = x.new_empty(x.shape[0], places.shape[0])
        for row, span, length in packing.spans():
            tokens[:, span] = x[:, row, :length]
        return tokens

    @staticmethod
    def put(tokens: Tensor, places: Tensor, packing: Packing) -> Tensor:
        padded = tokens.new_empty(tokens.shape[0], packing.batch, packing.slots)
        for row, span, length in packing.spans():
            padded[:, row, :length] = tokens[:, span]
            padded[:, row, length:] = 0
        return padded


_Layout = type[_Rows] | type[_Columns]


class _Take(torch.autograd.Function):
    """Padded to packed; what stood at padding gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: _Layout, places: Tensor, packing: Packing) -> Tensor:
        ctx.of = layout, places, packing
        return layout.take(x, places, packing)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        layout, places, packing = ctx.of
        return _put(layout, grads[0], places, packing), None, None, None


class _Put(torch.autograd.Function):
    """Packed to padded."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, layout: _Layout, places: Tensor, packing: Packing) -> Tensor:
        ctx.of = layout, places, packing
        return layout.put(tokens, places, packing)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        layout, places, packing = ctx.of
        return _take(layout, grads[0], places, packing), None, None, None


def _take(layout: _Layout, x: Tensor, places: Tensor, packing: Packing) -> Tensor:
    taken: Tensor = _Take.apply(x, layout, places, packing)
    return taken


def _put(layout: _Layout, tokens: Tensor, places: Tensor, packing: Packing) -> Tensor:
    put: Tensor = _Put.apply(tokens, layout, places, packing)
    return put
