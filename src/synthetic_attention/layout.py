"""Where the real tokens of a batch stand: padding, several sentences in a row, and the slots of a cache.

Positions are logical: token n of a sequence is its n-th real token, wherever padding (left, right or holes) puts it.
So a padded batch is aligned to the front, attended, and moved back, and logits that all examples share stay shared.
Where a batch has enough padding, the projections see its real tokens only, (n, C) instead of (B, T, C).

Shape legend: B batch, T new tokens, S keys in use (cached ones and new ones), n real tokens, C features. With several
sentences in a row, an aligned batch has one sentence per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = ["KeyValueCache", "Positions", "RealTokens", "TokenLayout", "is_traced", "is_transformed"]

_T = TypeVar("_T")
# With less padding than this, moving tokens costs more than computing it.
_LITTLE_PADDING = 0.1


class KeyValueCache(Protocol):
    """A decoding cache with the interface of Hugging Face's."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]: ...

    def get_seq_length(self, layer_idx: int = 0) -> int | Tensor: ...


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


@dataclass(frozen=True, eq=False)
class Positions:
    """The rows and columns of the logits that a synthesizing function is asked for.

    Attributes:
        rows: T, the new tokens.
        columns: S, the keys in use, new ones included.
        row_index: the positions of the rows: (B, T) where they differ by example (decoding a left-padded batch), (T,)
            where they are data (a static cache in compiled code), else None: row t is at position columns − rows + t.
        key_index: (B, S), the positions of the columns where they differ by example; else None: column s is at s.
    """

    rows: int
    columns: int
    row_index: Tensor | None = None
    key_index: Tensor | None = None

    @property
    def offset(self) -> int:
        """The position of the first row, where all examples have the same."""
        return self.columns - self.rows

    def queries(self, device: torch.device) -> Tensor:
        """The positions of the rows, (T,) or (B, T)."""
        if self.row_index is not None:
            return self.row_index
        return torch.arange(self.offset, self.columns, device=device)

    def keys(self, device: torch.device) -> Tensor:
        """The positions of the columns, (S,) or (B, S)."""
        return torch.arange(self.columns, device=device) if self.key_index is None else self.key_index

    def take(self, table: Tensor) -> Tensor:
        """Cut a table of scores (H, N, N) to (H, T, S), or (B, H, T, S) where positions differ by example."""
        if self.key_index is None:
            return self.take_rows(table)[..., : self.columns]
        assert self.row_index is not None
        return table[:, self.row_index[:, :, None], self.key_index[:, None, :]].transpose(0, 1)

    def take_rows(self, table: Tensor) -> Tensor:
        """Cut a table (H, N, …) to the rows, (H, T, …), where all examples have the same positions."""
        if self.row_index is None:
            return table[:, self.offset : self.columns]
        return table.index_select(1, self.row_index)

    def take_columns(self, scores: Tensor) -> Tensor:
        """Bring the columns of scores (B, H, T, ≥ S) from the order of positions into the order of the slots."""
        if self.key_index is None:
            return scores[..., : self.columns]
        return scores.gather(-1, self.key_index[:, None, None, :].expand(*scores.shape[:3], -1))


@dataclass(frozen=True, eq=False)
class RealTokens:
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
    def of(cls, real: Tensor, counts: Tensor, length: int) -> RealTokens:
        """Read a mask (B, T) and the lengths of its sequences, in order. Waits for their device.

        Args:
            length: slots in a row of the aligned batch.
        """
        front = torch.arange(length, device=real.device) < counts[:, None]
        given, front = (x.flatten().nonzero().squeeze(1) for x in (real, front))
        return cls((real.shape[0], real.shape[1]), (counts.shape[0], length), given, front, counts)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """`counts`, read once for all layers: it waits for the device."""
        return tuple(self.counts.tolist())

    def take(self, x: Tensor, *, aligned: bool = False) -> Tensor:
        """The real tokens (n, …) of the input (B, T, …), or of an aligned batch."""
        take, put = self._moves(aligned)
        return _move(x, take, put)

    def put(self, tokens: Tensor, *, aligned: bool = False) -> Tensor:
        """(n, …) into the slots of the input, (B, T, …), or of an aligned batch; the other slots are zeros."""
        take, put = self._moves(aligned)
        return _move(tokens, put, take)

    def _moves(self, aligned: bool) -> tuple[_Map, _Map]:
        places, shape = (self.front, self.aligned_shape) if aligned else (self.given, self.shape)

        def take(x: Tensor) -> Tensor:
            return x.flatten(0, 1).index_select(0, places)

        def put(x: Tensor) -> Tensor:
            return x.new_zeros(shape[0] * shape[1], *x.shape[1:]).index_copy_(0, places, x).unflatten(0, shape)

        return take, put

    def take_columns(self, x: Tensor) -> Tensor:
        """The real tokens (C, n) of an aligned (C, B, T)."""
        return _move(x, self._take_columns, self._put_columns)

    def put_columns(self, tokens: Tensor) -> Tensor:
        """(C, n) into an aligned (C, B, T); the other slots are zeros."""
        return _move(tokens, self._put_columns, self._take_columns)

    # Copied row by row of the batch: an index would copy number by number.
    def _take_columns(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, row, :length] for row, length in enumerate(self.lengths)], dim=1)

    def _put_columns(self, tokens: Tensor) -> Tensor:
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
    # A transform cannot differentiate _Move, but the copy itself.
    if is_transformed():
        return there(x)
    moved: Tensor = _Move.apply(x, there, back)
    return moved


@dataclass(frozen=True, eq=False)
class TokenLayout:
    """Where the real tokens of a batch stand; made once for all layers of a model.

    A model aligns its input, hands `layout.aligned` to its layers, and restores their output:

        layout = TokenLayout.of(attention_mask, x, cache)
        x = layout.align(x)
        for layer in layers:
            x = layer(x, layout.aligned, cache=cache)
        x = layout.restore(x)

    A layer does the same for its own input with `pack`, `pad`, `gather` and `unpack`, which leave padding out. In a
    decoding step (tokens in the cache before these) every token stays in its slot: nothing is moved.

    Attributes:
        shape: B and T of the input.
        columns: S, the slots to attend to.
        mask: (B, S) bool, True at real tokens; None where no token is known to be masked.
        is_aligned: real tokens come first in every row.
        has_past: tokens stay in their slots, after those in the cache.
        slots: (T,), where the new tokens stand in a static cache in compiled code, else None.
        sentences: where several sentences are in a row, their tokens.
        stored: the layout of the cache, if this is one aligned from it.
        may_unpad: leave padding out of projections where there is enough of it.
    """

    shape: tuple[int, int]
    columns: int
    mask: Tensor | None = None
    is_aligned: bool = True
    has_past: bool = False
    slots: Tensor | None = None
    sentences: RealTokens | None = None
    stored: TokenLayout | None = None
    may_unpad: bool = True

    @classmethod
    def of(
        cls,
        attention_mask: Tensor | TokenLayout | None,
        x: Tensor,
        cache: KeyValueCache | None = None,
        layer_idx: int = 0,
    ) -> TokenLayout:
        """The layout of x (B, T, …), of whose tokens those before are in the cache.

        Args:
            attention_mask: (B, S), 1/True at real tokens, cached ones included (of a static cache all slots, or the
                filled ones); or the layout that a model made.
            layer_idx: the layer of the cache that is counted.

        Raises:
            ValueError: the mask or the layout does not fit.
        """
        shape = (x.shape[0], x.shape[1])
        if isinstance(attention_mask, TokenLayout):
            if attention_mask.shape != shape:
                raise ValueError(f"got a TokenLayout of a batch {attention_mask.shape}; expected that of x, {shape}")
            return attention_mask
        past = 0 if cache is None else cached_length(cache, layer_idx)
        is_static = bool(getattr(cache, "is_compileable", False))
        slots = None
        if is_static and isinstance(past, Tensor) and torch.compiler.is_compiling():
            slots, columns = torch.arange(shape[1], device=x.device) + past, cast(Any, cache).get_max_length()
        else:
            columns = int(past) + shape[1]
            if is_static and attention_mask is not None:
                attention_mask = attention_mask[:, :columns]
        mask, is_aligned = (None, True) if attention_mask is None else _read_mask(attention_mask, shape[0], columns)
        return cls(shape, columns, mask, is_aligned, slots is not None or columns > shape[1], slots)

    @classmethod
    def of_segments(cls, segment_ids: Tensor) -> TokenLayout:
        """The layout of rows with several sentences, which do not see one another.

        A sentence means the same wherever it stands: its positions begin anew. So the aligned batch has a row for each.

        Args:
            segment_ids: (B, T), 0 at padding, elsewhere a number that changes from one sentence to the next.

        Raises:
            ValueError: the segments are not (B, T), or all padding.
        """
        if segment_ids.dim() != 2 or not bool(segment_ids.any()):
            raise ValueError(
                f"got segment_ids of shape {tuple(segment_ids.shape)}, {int(segment_ids.count_nonzero())} of them not "
                "0; expected (B, T), 0 at padding and for each sentence a number other than that of its neighbours"
            )
        real = segment_ids != 0
        starts = real.clone()
        starts[:, 1:] &= segment_ids[:, 1:] != segment_ids[:, :-1]
        counts = (starts.flatten().cumsum(0) - 1)[real.flatten()].bincount()
        tokens = RealTokens.of(real, counts, int(counts.max()))
        return cls(tokens.shape, real.shape[1], real, is_aligned=False, sentences=tokens)

    def to(self, *args: Any, **kwargs: Any) -> TokenLayout:
        """The same on another device, for models that are spread over several; arguments as of `torch.Tensor.to`."""
        if self.mask is None:
            return self
        stored = None if self.stored is None else self.stored.to(*args, **kwargs)
        return replace(self, mask=self.mask.to(*args, **kwargs), stored=stored)

    @property
    def aligned(self) -> TokenLayout:
        """The layout of the aligned batch, with all padding on the right."""
        return self if self.is_aligned or self.has_past else self._once("_aligned", self._align)

    def _align(self) -> TokenLayout:
        assert self.mask is not None
        shape, counts = self.shape, self.mask.sum(1)
        if self.sentences is not None:
            shape, counts = self.sentences.aligned_shape, self.sentences.counts
        mask: Tensor | None = torch.arange(shape[1], device=counts.device) < counts[:, None]
        if self.sentences is not None and bool(cast(Tensor, mask).all()):
            mask = None
        return TokenLayout(shape, shape[1], mask, stored=self, may_unpad=self.may_unpad)

    @property
    def padded(self) -> TokenLayout:
        """The same, where projections compute the padding too."""
        if self.mask is None or is_traced():
            return self
        return self._once("_padded", lambda: replace(self, may_unpad=False))

    @property
    def positions(self) -> Positions:
        """The positions of the aligned batch; in a decoding step those of its slots."""
        return self._once("_positions", self._find_positions)

    def _find_positions(self) -> Positions:
        if not self.has_past:
            rows = self.aligned.shape[1]
            return Positions(rows, rows)
        if self.mask is None:
            return Positions(self.shape[1], self.columns, self.slots)
        keys = self._place
        return Positions(self.shape[1], self.columns, keys[:, self._new], keys)

    def key_mask(self, is_causal: bool) -> Tensor | None:
        """(B, S), the keys that attention has to hide, of the aligned batch; None where it sees all.

        Causal rows of an aligned batch see no padding, and padded rows become zeros anyway.
        """
        if self.has_past:
            return self.mask
        return None if is_causal else self.aligned.mask

    def hidden_slots(self, dtype: torch.dtype) -> Tensor | None:
        """(T, S), −inf at the slots of a static cache that the new tokens may not see yet; None elsewhere."""
        if self.slots is None:
            return None
        later = torch.arange(self.columns, device=self.slots.device) > self.slots[:, None]
        return torch.zeros(later.shape, dtype=dtype, device=later.device).masked_fill(later, -torch.inf)

    def align(self, x: Tensor, dim: int = 1) -> Tensor:
        """Move the real tokens of x, whose axis 0 is the batch and axis `dim` the slots, to the front."""
        if self.is_aligned or self.has_past:
            return x
        if dim == 1 and (self.sentences is not None or not is_traced()):
            return self.tokens.put(self.tokens.take(x), aligned=True)
        return _gather(x, self.order, dim)

    def restore(self, x: Tensor, dim: int = 1) -> Tensor:
        """Undo `align`; padded slots become zeros."""
        if self.mask is None:
            return x
        if self.has_past or self.is_aligned:
            return x.masked_fill(~_spread(self.mask[:, self._new], x, dim), 0)
        if dim == 1 and (self.sentences is not None or not is_traced()):
            return self.tokens.put(self.tokens.take(x, aligned=True))
        return _gather(x, self._place, dim).masked_fill(~_spread(self.mask, x, dim), 0)

    def align_pairs(self, scores: Tensor) -> Tensor:
        """Align both axes of scores (H, T, S) or (B, H, T, S), with one sentence per row."""
        self._check_pairs()
        if self.is_aligned or self.has_past:
            return scores
        scores = scores.expand(self.shape[0], -1, -1, -1)
        return self.align(self.align(scores, dim=2), dim=3)

    def restore_pairs(self, weights: Tensor) -> Tensor:
        """Undo `align_pairs`; the rows and columns of padded slots become zeros."""
        self._check_pairs()
        weights = self.restore(weights, dim=2)
        return weights if self.has_past else self.restore(weights, dim=3)

    def _check_pairs(self) -> None:
        if self.sentences is not None:
            raise ValueError("got a bias or weights over several sentences in a row; expected one sentence per row")

    @property
    def unpads(self) -> bool:
        """Whether `pack` leaves the padding out."""
        if self.mask is None or not self.may_unpad or self.has_past or is_traced():
            return False
        return self.tokens.given.shape[0] <= (1 - _LITTLE_PADDING) * self.mask.numel()

    def pack(self, x: Tensor) -> Tensor:
        """The input (B, T, C) for projections: real tokens (n, C), or aligned (B, T, C)."""
        return self.tokens.take(x) if self.unpads else self.align(x)

    def pad(self, x: Tensor) -> Tensor:
        """A projection of `pack`, aligned: (B, T, C)."""
        return self.tokens.put(x, aligned=True) if self.unpads else x

    def gather(self, y: Tensor) -> Tensor:
        """Undo `pad`."""
        return self.tokens.take(y, aligned=True) if self.unpads else y

    def unpack(self, y: Tensor) -> Tensor:
        """Undo `pack`: (B, T, C) in the slots of the input, zeros at padding."""
        return self.tokens.put(y) if self.unpads else self.restore(y)

    def update(
        self, cache: KeyValueCache | None, key: Tensor, value: Tensor, layer_idx: int | None
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, H, T, K) of the aligned batch; return those to attend to."""
        if cache is None:
            return key, value
        slots = self if self.stored is None else self.stored
        new = key, value
        if not (slots.is_aligned or slots.has_past):
            new = slots.restore(key, dim=2), slots.restore(value, dim=2)
        keys, values = cache.update(*new, cast(int, layer_idx))
        if not self.has_past:
            return key, value
        # A static cache returns all slots. Only compiled code attends to those that are not filled.
        return keys[:, :, : self.columns], values[:, :, : self.columns]

    @property
    def tokens(self) -> RealTokens:
        """The places of the real tokens. Not for traced code."""
        return self._once("_tokens", self._find) if self.sentences is None else self.sentences

    def _find(self) -> RealTokens:
        assert self.mask is not None
        return RealTokens.of(self.mask, self.mask.sum(1), self.mask.shape[1])

    @property
    def _new(self) -> Tensor | slice:
        return slice(self.columns - self.shape[1], None) if self.slots is None else self.slots

    @property
    def _place(self) -> Tensor:
        """(B, S), how many real tokens stand before each slot."""
        mask = cast(Tensor, self.mask)
        return self._once("_places", lambda: (mask.long().cumsum(1) - 1).clamp_min(0))

    @property
    def order(self) -> Tensor:
        """(B, S), the slot of each row's n-th real token, then its other slots."""
        mask = cast(Tensor, self.mask)
        return self._once("_orders", lambda: torch.argsort((~mask).to(torch.uint8), dim=1, stable=True))

    def _once(self, name: str, make: Callable[[], _T]) -> _T:
        """The result of `make`, computed once for all layers. (Compiled code does so by itself.)"""
        if is_traced():
            return make()
        if name not in self.__dict__:
            self.__dict__[name] = make()
        return cast(_T, self.__dict__[name])


def cached_length(cache: KeyValueCache, layer_idx: int) -> int | Tensor:
    """How many tokens a layer of the cache has."""
    length = cache.get_seq_length(layer_idx)
    layers = getattr(cache, "layers", ())
    is_static = getattr(cache, "is_compileable", False)
    if not is_static and int(length) == 0 and layer_idx < len(layers):
        # transformers' own layers count keys, which may have no elements.
        values = getattr(layers[layer_idx], "values", None)
        return 0 if values is None else int(values.shape[-2])
    return length


def _read_mask(attention_mask: Tensor, batch: int, columns: int) -> tuple[Tensor | None, bool]:
    """The mask as bool, None where all tokens are real, and whether real tokens come first in every row."""
    if attention_mask.dim() != 2 or attention_mask.shape[0] != batch or attention_mask.shape[1] != columns:
        # Only here: to write a size into a text binds compiled code to that size.
        raise ValueError(
            f"got an attention_mask of shape {tuple(attention_mask.shape)}; expected (B, S) = {(batch, columns)}, 1 or "
            "True at real tokens. A mask over pairs of tokens is an attn_bias: 0 where a key may be seen, -inf where "
            "not"
        )
    mask = attention_mask.bool()
    # Compiled code cannot branch on data, nor can a transform: there, rows are always aligned.
    if is_traced():
        return mask, False
    if attention_mask.is_floating_point() and bool((attention_mask < 0).any()):
        raise ValueError("got a negative attention_mask; expected 1 at real tokens and 0 at padding, not a bias")
    if bool(mask.all()):
        return None, True
    return mask, bool((mask[:, 1:] <= mask[:, :-1]).all())


def _spread(per_slot: Tensor, x: Tensor, dim: int) -> Tensor:
    """View (B, S) as (B, 1, …, S, …, 1), S at axis `dim` of x."""
    shape = [1] * x.dim()
    shape[0], shape[dim] = per_slot.shape
    return per_slot.view(shape)


def _gather(x: Tensor, index: Tensor, dim: int) -> Tensor:
    return x.gather(dim, _spread(index, x, dim).expand_as(x))
