"""Key masks, and the padding of a batch.

Positions are logical: token n of a row is its n-th real token, wherever padding (left, right or holes) puts it.
So a padded batch is aligned to the front, attended, and moved back; the shared forms of logits stay shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from .packing import Packing
from .transforms import is_traced

__all__ = ["Padding", "allowed_keys", "bias_as_scores", "causal_mask", "hide_later"]


def causal_mask(rows: int, columns: int, offset: int, device: torch.device) -> Tensor:
    """(rows, columns), True where row t may see key s: s ≤ offset + t."""
    return torch.ones(rows, columns, dtype=torch.bool, device=device).tril(offset)


def allowed_keys(
    rows: int, columns: int, attention_mask: Tensor | None, is_causal: bool, offset: int, device: torch.device
) -> Tensor | None:
    """True where a row may see a key: (B or 1, 1, rows or 1, columns); None where every key is allowed."""
    allowed = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
    if is_causal and offset < columns - 1:
        causal = causal_mask(rows, columns, offset, device)[None, None]
        allowed = causal if allowed is None else allowed & causal
    return allowed


def bias_as_scores(bias: Tensor, batch: int, heads: int, rows: int, columns: int) -> Tensor:
    """An additive bias as shared scores, (H, T, S), or (B, H, T, S) where it differs by example.

    Args:
        bias: floats, (T, S), (H or 1, T, S) or (B or 1, H or 1, T, S).

    Raises:
        ValueError: it has another dtype or shape.
    """
    if not bias.is_floating_point():
        raise ValueError(
            f"got attn_bias of dtype {bias.dtype}; expected floats that are added to the logits: 0 where a key may be "
            "seen, -inf where it may not"
        )
    leading = ((batch, 1), (heads, 1))[4 - bias.dim() :] if 2 < bias.dim() <= 4 else ()
    fits = 2 <= bias.dim() <= 4 and tuple(bias.shape[-2:]) == (rows, columns)
    if not fits or any(size not in known for size, known in zip(bias.shape, leading, strict=False)):
        raise ValueError(
            f"got attn_bias of shape {tuple(bias.shape)}; expected (T, S), (H, T, S) or (B, H, T, S) with B = {batch}, "
            f"H = {heads} (or 1 for either), T = {rows}, S = {columns}"
        )
    if bias.dim() < 4 or bias.shape[0] == 1:
        return bias.reshape(-1, rows, columns).expand(heads, -1, -1)
    return bias.expand(-1, heads, -1, -1)


def hide_later(slots: Tensor, values: Tensor, attn_bias: Tensor | None) -> Tensor:
    """A bias that hides from the tokens at `slots` (T,) what stands after them in (B, H, S, K), and the given one."""
    later = torch.arange(values.shape[-2], device=values.device) > slots[:, None]
    hidden = values.new_zeros(later.shape).masked_fill(later, -torch.inf)
    return hidden if attn_bias is None else attn_bias + hidden


_T = TypeVar("_T")
# With less padding than this, moving tokens costs more than computing it.
_LITTLE_PADDING = 0.1


@dataclass(frozen=True, eq=False)
class Padding:
    """Where the real tokens of a batch are; computed once for all layers of a model.

    Attributes:
        mask: (B, S) bool, True at real tokens.
        index: (B, S), the slot of each row's n-th real token (then its other slots); None where rows are aligned.
        full: no token is masked, as far as is known.
    """

    mask: Tensor
    index: Tensor | None
    full: bool

    @classmethod
    def from_mask(cls, attention_mask: Tensor, *, batch: int | None = None, length: int | None = None) -> Padding:
        """Read a mask (B, S), 1/True = real token.

        Args:
            batch, length: what B and S have to be, where known.

        Raises:
            ValueError: the mask is not (B, S).
        """
        fits = attention_mask.dim() == 2
        fits = fits and batch in (None, attention_mask.shape[0]) and length in (None, attention_mask.shape[1])
        if not fits:
            # Only here: to write a size into a text binds compiled code to that size.
            expected = f"({'B' if batch is None else batch}, {'S' if length is None else length})"
            raise ValueError(
                f"got an attention_mask of shape {tuple(attention_mask.shape)}; expected {expected}, 1 or True at real "
                "tokens. A mask over pairs of tokens is an attn_bias: 0 where a key may be seen, -inf where not"
            )
        mask = attention_mask.bool()
        # Compiled code cannot branch on data, nor can a transform: there, rows are always aligned.
        if is_traced():
            return cls(mask, cls._front(mask), full=False)
        if attention_mask.is_floating_point() and bool((attention_mask < 0).any()):
            raise ValueError("got a negative attention_mask; expected 1 at real tokens and 0 at padding, not a bias")
        if bool(mask.all()):
            return cls(mask, None, full=True)
        aligned = bool((mask[:, 1:] <= mask[:, :-1]).all())
        return cls(mask, None if aligned else cls._front(mask), full=False)

    @classmethod
    def of_batch(cls, mask: Tensor | Padding | None, batch: int, length: int) -> Padding | None:
        """That of a batch (B, S), from its mask or as it was made before; None where no token is known to be masked.

        Raises:
            ValueError: it is that of another batch.
        """
        if isinstance(mask, Tensor):
            mask = cls.from_mask(mask, batch=batch, length=length)
        elif mask is not None and tuple(mask.mask.shape) != (batch, length):
            raise ValueError(f"got a Padding of shape {tuple(mask.mask.shape)}; expected {(batch, length)}")
        return None if mask is None or mask.full else mask

    @staticmethod
    def _front(mask: Tensor) -> Tensor:
        return torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)

    def to(self, *args: Any, **kwargs: Any) -> Padding:
        """The same on another device; arguments as those of `torch.Tensor.to`."""
        index = None if self.index is None else self.index.to(*args, **kwargs)
        return Padding(self.mask.to(*args, **kwargs), index, self.full)

    def _once(self, name: str, make: Callable[[], _T]) -> _T:
        """What `make` returns, kept: all layers of a model ask for the same. (Compiled code does so by itself.)"""
        if is_traced():
            return make()
        if name not in self.__dict__:
            self.__dict__[name] = make()
        return cast(_T, self.__dict__[name])

    @property
    def packing(self) -> Packing | None:
        """How to leave the padding out; None where there is little of it, and where code is traced."""
        return None if self.full or is_traced() else self._once("_packing", self._pack)

    def _pack(self) -> Packing | None:
        packing = Packing.of(self.mask)
        return packing if packing.given.shape[0] <= (1 - _LITTLE_PADDING) * self.mask.numel() else None

    @property
    def aligned(self) -> Padding:
        """The padding of the aligned batch: the same lengths, all on the right."""
        return self if self.index is None else self._once("_aligned", self._align_mask)

    def _align_mask(self) -> Padding:
        slots = torch.arange(self.mask.shape[1], device=self.mask.device)
        return Padding(slots < self.mask.sum(1, keepdim=True), None, self.full)

    @property
    def positions(self) -> Tensor:
        """(B, S): how many real tokens stand before each slot."""
        return self._once("_positions", lambda: (self.mask.long().cumsum(1) - 1).clamp_min(0))

    def align(self, x: Tensor, dim: int = 1) -> Tensor:
        """Move the real tokens of x, whose axis `dim` are the slots and axis 0 the batch, to the front."""
        return x if self.index is None else _take(x, self.index, dim)

    def restore(self, x: Tensor, dim: int = 1) -> Tensor:
        """Undo `align`; the padded slots are zeros."""
        if self.full:
            return x
        if self.index is not None:
            x = _take(x, self.positions, dim)
        return x.masked_fill(~_spread(self.mask, x, dim), 0)

    def align_pairs(self, x: Tensor) -> Tensor:
        """Align both axes of scores (B or none, H, S, S)."""
        x = x.expand(self.mask.shape[0], -1, -1, -1)
        return self.align(self.align(x, dim=2), dim=3)

    def restore_pairs(self, x: Tensor) -> Tensor:
        """Undo `align_pairs`; the rows and columns of padded slots are zeros."""
        return self.restore(self.restore(x, dim=2), dim=3)


def _spread(per_slot: Tensor, x: Tensor, dim: int) -> Tensor:
    """View (B, S) as (B, 1, …, S, …, 1), S at axis `dim` of x."""
    shape = [1] * x.dim()
    shape[0], shape[dim] = per_slot.shape
    return per_slot.view(shape)


def _take(x: Tensor, index: Tensor, dim: int) -> Tensor:
    return x.gather(dim, _spread(index, x, dim).expand_as(x))
