"""The real tokens of a padded batch, and their ways between its forms (`layout.py`).

Shape legend: B batch, T tokens of a row, n real tokens, C features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd import forward_ad

# With less padding than this, moving tokens costs more than computing it.
_LITTLE_PADDING = 0.1


def is_transformed() -> bool:
    """Whether a transform of `torch.func`, or forward-mode differentiation, is active.

    The fast kernels are operators with one derivative, in reverse mode, and without a batching rule: they cannot run.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_traced() -> bool:
    """Whether code must not read the content of a tensor: it is compiled or transformed."""
    return torch.compiler.is_compiling() or is_transformed()


class Movable:
    """A dataclass with a method `to`, for models that are spread over several devices."""

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The same with all tensors moved; arguments as of `torch.Tensor.to`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        moved = {name: x.to(*args, **kwargs) for name, x in values.items() if isinstance(x, Tensor | Movable)}
        return replace(self, **moved)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class RealTokens(Movable):
    """The places of the n real tokens, in the input and in the aligned batch.

    Attributes:
        shape, aligned_shape: B and T of the input and of the aligned batch.
        given, front: (n,), places in the flattened input, row by row, and in the flattened aligned batch.
        counts: real tokens in each row of the aligned batch.
    """

    shape: tuple[int, int]
    aligned_shape: tuple[int, int]
    given: Tensor
    front: Tensor
    counts: Tensor

    @classmethod
    def of(cls, real: Tensor, counts: Tensor, length: int, total: int) -> RealTokens:
        """Read a mask (B, T) with `total` real tokens, for an aligned batch with rows of `length` slots."""
        front = torch.arange(length, device=real.device) < counts[:, None]
        # Without its size, `nonzero` waits for the device.
        given, front = (x.flatten().nonzero_static(size=total).squeeze(1) for x in (real, front))
        return cls((real.shape[0], real.shape[1]), (counts.shape[0], length), given, front, counts)

    @cached_property
    def has_much_padding(self) -> bool:
        """Whether there is enough padding to leave it out."""
        return self.given.shape[0] <= (1 - _LITTLE_PADDING) * (self.shape[0] * self.shape[1])

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """`counts`, read once for all layers; on a CPU only."""
        return tuple(self.counts.tolist())

    @cached_property
    def positions(self) -> Tensor:
        """(n,), the position of each real token in its row."""
        return self.front % self.aligned_shape[1]

    def take(self, x: Tensor, *, aligned: bool = False) -> Tensor:
        """The real tokens (1, n, …) of the input (B, T, …), or of an aligned batch."""
        return _move(x, *self._moves(aligned))

    def put(self, tokens: Tensor, *, aligned: bool = False) -> Tensor:
        """(1, n, …) into the slots of the input, (B, T, …), or of an aligned batch; the other slots are zeros."""
        return _move(tokens, *self._moves(aligned)[::-1])

    def _moves(self, aligned: bool) -> tuple[_Map, _Map]:
        places, shape = (self.front, self.aligned_shape) if aligned else (self.given, self.shape)

        def take(x: Tensor) -> Tensor:
            return x.flatten(0, 1).index_select(0, places)[None]

        def put(x: Tensor) -> Tensor:
            return x.new_zeros(shape[0] * shape[1], *x.shape[2:]).index_copy_(0, places, x[0]).unflatten(0, shape)

        return take, put

    def take_columns(self, x: Tensor) -> Tensor:
        """The real tokens (C, n) of an aligned (C, B, T)."""
        return _move(x, self._take_columns, self._put_columns)

    def put_columns(self, tokens: Tensor) -> Tensor:
        """(C, n) into an aligned (C, B, T); the other slots are zeros."""
        return _move(tokens, self._put_columns, self._take_columns)

    # On a CPU row by row of the batch: an index would copy number by number.
    def _take_columns(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return x.flatten(1, 2).index_select(1, self.front)
        return torch.cat([x[:, row, :length] for row, length in enumerate(self.lengths)], dim=1)

    def _put_columns(self, tokens: Tensor) -> Tensor:
        if tokens.device.type != "cpu":
            slots = tokens.new_zeros(tokens.shape[0], self.aligned_shape[0] * self.aligned_shape[1])
            return slots.index_copy_(1, self.front, tokens).unflatten(1, self.aligned_shape)
        padded, start = tokens.new_empty(tokens.shape[0], *self.aligned_shape), 0
        for row, length in enumerate(self.lengths):
            padded[:, row, :length] = tokens[:, start : start + length]
            padded[:, row, length:] = 0
            start += length
        return padded


_Map = Callable[[Tensor], Tensor]


class _Move(torch.autograd.Function):
    """A copy of the real tokens there; their gradient is copied back, and padding gets none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: _Map, back: _Map) -> Tensor:
        ctx.maps = back, there
        return there(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _move(grads[0], *ctx.maps), None, None


def _move(x: Tensor, there: _Map, back: _Map) -> Tensor:
    # Transforms and the compiler cannot handle _Move; they can handle the plain copy.
    moved: Tensor = there(x) if is_traced() else _Move.apply(x, there, back)
    return moved
