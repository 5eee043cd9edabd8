"""Where the real tokens of a batch stand: padding, several sentences in a row, and the slots of a cache.

Positions are logical: token n of a sequence is its n-th real token, wherever padding (left, right or holes) puts it.
There are three forms of a batch:

- the input, (B, T, C), with padding anywhere;
- packed, (1, n, C): the real tokens one after the other. Projections, norms and feed-forward layers see this form;
- aligned, (B, T, C): each row's real tokens first, padding after them. Heads see this form, in which the n-th token has
  position n in every row, so that logits that all examples share stay shared.

Where a batch has little padding, and where nothing may be packed, projections see the aligned form too.

Shape legend: B batch, T new tokens, S keys in use (cached ones and new ones), n real tokens, C features. With several
sentences in a row, an aligned batch has one sentence per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .logits import Movable, Positions

if TYPE_CHECKING:
    from transformers import Cache

# With less padding than this, moving tokens costs more than computing it.
_LITTLE_PADDING = 0.1
# On a CPU, columns of rows with more tokens than this on average are faster moved row by row than by an index.
_SHORT_ROW = 40


def is_transformed() -> bool:
    """Whether a transform of `torch.func`, or forward-mode differentiation, is active.

    The fast kernels are operators with one derivative, in reverse mode, and without a batching rule: they cannot run.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_traced() -> bool:
    """Whether code must not read the content of a tensor: it is compiled or transformed, or tensors are fake."""
    if torch.compiler.is_compiling() or is_transformed():
        return True
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


@dataclass(eq=False)
class TokenLayout(Movable):
    """Where the real tokens of a batch stand; made once for all layers of a model.

    A model packs its input, hands `layout.packed` to its layers, and unpacks their output:

        layout = TokenLayout.of(attention_mask, x, cache)
        x = layout.pack(x)
        for layer in layers:
            x = layer(x, layout.packed, cache=cache)
        x = layout.unpack(x)

    A layer does the same with its own input; where this is packed already, `pack` and `unpack` return it as it is.
    Between its projections a layer pads to the aligned batch. In a decoding step (tokens in the cache before these)
    every token stays in its slot: nothing is moved.

    Attributes:
        shape: the first two axes of the layer's input: B and T, or 1 and n where it is packed.
        columns: S, the slots to attend to.
        positions: of the aligned batch; in a decoding step of its slots.
        mask: (B, S) bool, True at the real tokens of the input, or of the aligned batch where that is packed; None
            where no token is known to be masked.
        has_past: tokens stay in their slots, after those in the cache.
        slots: (T,), where the new tokens stand in a static cache in compiled code, else None.
        tokens: the places of the real tokens, where something is padded; None in a decoding step and in traced code.
        may_pack: whether to pack a batch that has enough padding.
        is_packed: the layer's input is packed.
        has_sentences: several sentences are in a row.
        front: the layout of the aligned batch, where tokens have to move.
        cache_mask: the mask of the batch that this one is aligned from; the cache keeps its slots.
        pair_mask: (1, T, S), 0 where a token sees a key, else −inf or as low; where new tokens are not the last keys.
    """

    shape: tuple[int, int]
    columns: int
    positions: Positions
    mask: Tensor | None = None
    has_past: bool = False
    slots: Tensor | None = None
    tokens: RealTokens | None = None
    may_pack: bool = True
    is_packed: bool = False
    has_sentences: bool = False
    front: TokenLayout | None = None
    cache_mask: Tensor | None = None
    pair_mask: Tensor | None = None

    @classmethod
    def of(
        cls, attention_mask: Tensor | TokenLayout | None, x: Tensor, cache: Cache | None = None, layer_idx: int = 0
    ) -> TokenLayout:
        """The layout of x (B, T, …), whose earlier tokens are in layer `layer_idx` of the cache.

        Args:
            attention_mask: (B, S), 1/True at real tokens, cached ones included (of a static cache all slots, or the
                filled ones); or the layout that a model made.

        Raises:
            ValueError: the mask or the layout does not fit.
        """
        batch, rows = shape = (x.shape[0], x.shape[1])
        if isinstance(attention_mask, TokenLayout):
            if attention_mask.shape != shape:
                raise ValueError(f"got a TokenLayout of a batch {attention_mask.shape}; expected that of x, {shape}")
            return attention_mask
        past, slots = 0 if cache is None else _cached_length(cache, layer_idx), None
        if isinstance(past, Tensor) and torch.compiler.is_compiling():
            assert cache is not None
            slots, columns = torch.arange(rows, device=x.device) + past, cache.get_max_length()
        else:
            columns = int(past) + rows
            if attention_mask is not None and getattr(cache, "is_compileable", False):
                attention_mask = attention_mask[:, :columns]
        mask, total, is_unordered = None, None, False
        if attention_mask is not None:
            mask, total, is_unordered = read_mask(attention_mask, batch, columns)
        has_past = slots is not None or columns > rows
        if mask is None or has_past:
            if mask is None:
                layout = cls(shape, columns, Positions(rows, columns, slots), has_past=has_past, slots=slots)
            else:
                layout = cls.of_step(mask, x, slots)
            if slots is not None:
                later = torch.arange(columns, device=x.device) > slots[:, None]
                layout.pair_mask = x.new_zeros(later.shape).masked_fill(later, -torch.inf)[None]
            return layout
        counts = mask.sum(1)
        tokens = None if total is None else RealTokens.of(mask, counts, rows, total)
        layout = cls(shape, rows, Positions(rows, rows), mask, tokens=tokens)
        if is_unordered:
            layout.front = layout._align(counts)
        return layout

    @classmethod
    def of_step(cls, mask: Tensor, x: Tensor, slots: Tensor | None = None) -> TokenLayout:
        """The layout of new tokens x (B, T, …), the last ones of a mask (B, S); all stay in their slots."""
        rows, columns = x.shape[1], mask.shape[1]
        place = places_before(mask)
        layout = cls((x.shape[0], rows), columns, Positions(rows, columns), mask, has_past=True, slots=slots)
        layout.positions = Positions(rows, columns, layout._of_new(place), place)
        return layout

    @classmethod
    def of_segments(cls, segment_ids: Tensor) -> TokenLayout:
        """The layout of rows with several sentences, which do not see one another.

        A sentence means the same wherever it stands: its positions begin anew. So the aligned batch has a row for each.

        Args:
            segment_ids: (B, T), 0 at padding, elsewhere a number that changes from one sentence to the next.

        Raises:
            ValueError: the segments are not (B, T), or all padding.
        """
        sentences = total = longest = 0
        if segment_ids.dim() == 2 and segment_ids.numel():
            real = segment_ids != 0
            starts = real.clone()
            starts[:, 1:] &= segment_ids[:, 1:] != segment_ids[:, :-1]
            # The number of each real token, and of the first one of its sentence.
            numbers = real.flatten().cumsum(0)
            firsts = torch.where(starts.flatten(), numbers, 0).cummax(0).values
            facts = starts.sum(), numbers[-1], (numbers - firsts).max() + 1
            sentences, total, longest = torch.stack(facts).tolist()
        if not total:
            raise ValueError(
                f"got segment_ids of shape {tuple(segment_ids.shape)}, {int(segment_ids.count_nonzero())} of them not "
                "0; expected (B, T), 0 at padding and for each sentence a number other than that of its neighbours"
            )
        begins = starts.flatten().nonzero_static(size=sentences).squeeze(1)
        counts = numbers[begins].diff(append=numbers[-1:] + 1)
        tokens = RealTokens.of(real, counts, longest, total)
        layout = cls(tokens.shape, real.shape[1], Positions(longest, longest), real, tokens=tokens, has_sentences=True)
        layout.front = layout._align(counts)
        return layout

    def _align(self, counts: Tensor) -> TokenLayout:
        rows = self.positions.rows
        mask = torch.arange(rows, device=counts.device) < counts[:, None]
        layout = TokenLayout((counts.shape[0], rows), rows, self.positions, mask)
        if not self.has_sentences:
            layout.cache_mask = self.mask
        elif self.tokens is not None and len(self.tokens.given) == mask.numel():
            layout.mask = None
        return layout

    @property
    def aligned(self) -> TokenLayout:
        """The layout of the aligned batch, with all padding on the right."""
        return self if self.front is None else self.front

    @property
    def padded(self) -> TokenLayout:
        """The same, where nothing is packed."""
        return replace(self, may_pack=False)

    @property
    def packed(self) -> TokenLayout:
        """The layout of `pack(x)`: of the aligned batch where nothing is packed."""
        tokens, aligned = self.real_tokens, self.aligned
        if tokens is None:
            return aligned
        shape = (1, len(tokens.given))
        return replace(self, shape=shape, mask=aligned.mask, tokens=tokens, is_packed=True, front=aligned)

    @property
    def real_tokens(self) -> RealTokens | None:
        """The places of the real tokens if projections see these only.

        Compiled code computes the padding of its own input: it serves any number of tokens with one graph.
        """
        if self.is_packed:
            return self.tokens
        if torch.compiler.is_compiling() or self.tokens is None or not self.may_pack or is_transformed():
            return None
        return self.tokens if self.tokens.has_much_padding else None

    @property
    def token_slots(self) -> Tensor:
        """(B, S), the slot of each row's n-th real token, then its other slots; computed once for all layers."""
        return self._order_slots() if torch.compiler.is_compiling() else self._token_slots

    @cached_property
    def _token_slots(self) -> Tensor:
        return self._order_slots()

    def _order_slots(self) -> Tensor:
        assert self.mask is not None
        mask = self.mask
        slots = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
        # The place of each slot in this order, then the inverse. (Exporters know no stable sort.)
        places = torch.where(mask, mask.long().cumsum(1), mask.sum(1, keepdim=True) + (~mask).long().cumsum(1)) - 1
        return torch.zeros_like(slots).scatter(1, places, slots)

    def key_mask(self, is_causal: bool) -> Tensor | None:
        """(B, S), the keys that attention has to hide, of the aligned batch; None where it sees all.

        Causal rows of an aligned batch see no padding, and padded rows become zeros anyway.
        """
        if self.has_past:
            return self.mask
        return None if is_causal else self.aligned.mask

    def align(self, x: Tensor, dim: int = 1) -> Tensor:
        """Move the real tokens of x, whose axis 0 is the batch and axis `dim` the slots, to the front."""
        if self.front is None or self.mask is None:
            return x
        if dim == 1 and self.tokens is not None:
            return self.tokens.put(self.tokens.take(x), aligned=True)
        return x.gather(dim, _spread(self.token_slots, x, dim).expand_as(x))

    def restore(self, x: Tensor, dim: int = 1) -> Tensor:
        """Undo `align`; padded slots become zeros."""
        if self.mask is None:
            return x
        if self.front is None:
            return x.masked_fill(~_spread(self._of_new(self.mask), x, dim), 0)
        if dim == 1 and self.tokens is not None:
            return self.tokens.put(self.tokens.take(x, aligned=True))
        return _restore(x, self.mask, dim)

    def _of_new(self, per_slot: Tensor) -> Tensor:
        """(B, T), the part of (B, S) that belongs to the new tokens."""
        past = self.columns - self.shape[1]
        if self.slots is not None:
            return per_slot[:, self.slots]
        if torch.compiler.is_exporting():
            return per_slot[:, torch.arange(past, self.columns, device=per_slot.device)]
        return per_slot[:, past:]

    def align_pairs(self, scores: Tensor) -> Tensor:
        """Align both axes of scores (H, T, S) or (B, H, T, S), with one sentence per row."""
        self._check_pairs()
        if self.front is None:
            return scores
        scores = scores.expand(self.shape[0], -1, -1, -1)
        return self.align(self.align(scores, dim=2), dim=3)

    def restore_pairs(self, weights: Tensor) -> Tensor:
        """Undo `align_pairs`; padded rows and columns become zeros."""
        self._check_pairs()
        weights = self.restore(weights, dim=2)
        return weights if self.has_past else self.restore(weights, dim=3)

    def _check_pairs(self) -> None:
        if self.has_sentences:
            raise ValueError("got a bias or weights over several sentences in a row; expected one sentence per row")

    def pack(self, x: Tensor) -> Tensor:
        """The input (B, T, C) for projections: packed (1, n, C), or aligned (B, T, C)."""
        if self.is_packed:
            return x
        return self.align(x) if (tokens := self.real_tokens) is None else tokens.take(x)

    def pad(self, x: Tensor) -> Tensor:
        """A projection of `pack`, aligned: (B, T, C)."""
        return x if (tokens := self.real_tokens) is None else tokens.put(x, aligned=True)

    def unpack(self, y: Tensor) -> Tensor:
        """Undo `pack`: (B, T, C) in the slots of the input, zeros at padding."""
        if self.is_packed:
            return y
        return self.restore(y) if (tokens := self.real_tokens) is None else tokens.put(y)

    def update(self, cache: Cache | None, key: Tensor, value: Tensor, layer_idx: int | None) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, H, T, K) of the aligned batch; return those to attend to."""
        if cache is None:
            return key, value
        if self.is_packed:
            return self.aligned.update(cache, key, value, layer_idx)
        assert layer_idx is not None
        given = self.mask if self.front is not None else self.cache_mask
        new = (key, value) if given is None else [_restore(x, given, 2) for x in (key, value)]
        # A static cache returns all slots. Only compiled code attends to those that are not filled. (The exporter of
        # torch 2.11 loses the length of a slice.)
        keys, values = (x.narrow(2, 0, min(self.columns, x.shape[2])) for x in cache.update(*new, layer_idx))
        return (keys, values) if self.has_past else (key, value)


def places_before(mask: Tensor) -> Tensor:
    """(B, S), how many real tokens stand before each slot."""
    return (mask.long().cumsum(1) - 1).clamp_min(0)


def _cached_length(cache: Cache, layer_idx: int) -> int | Tensor:
    """How many tokens a layer of the cache has."""
    length: int | Tensor = cache.get_seq_length(layer_idx)
    layers = getattr(cache, "layers", ())
    if isinstance(length, Tensor) or length or layer_idx >= len(layers):
        return length
    # transformers' own layers count keys; there may be none.
    values = getattr(layers[layer_idx], "values", None)
    return 0 if values is None else int(values.shape[-2])


def check_mask(attention_mask: Tensor, batch: int, columns: int) -> None:
    """Raise ValueError unless a mask is (B, S)."""
    if attention_mask.dim() != 2 or attention_mask.shape[0] != batch or attention_mask.shape[1] != columns:
        # Only here: to write a size into a text binds compiled code to that size.
        raise ValueError(
            f"got an attention_mask of shape {tuple(attention_mask.shape)}; expected (B, S) = {(batch, columns)}, 1 or "
            "True at real tokens. A mask over pairs of tokens is an attn_bias: 0 where a key may be seen, else -inf"
        )


def read_mask(attention_mask: Tensor, batch: int, columns: int) -> tuple[Tensor | None, int | None, bool]:
    """Read a mask (B, S): this waits for the device, once.

    Returns:
        The mask as bool, None where all are real; how many are, None if not known; whether one may follow padding.
    """
    check_mask(attention_mask, batch, columns)
    mask = attention_mask.bool()
    # Compiled code cannot branch on data, nor can a transform.
    if is_traced():
        return mask, None, True
    facts = [mask.sum(), (mask[:, 1:] > mask[:, :-1]).any()]
    if attention_mask.is_floating_point():
        facts.append((attention_mask < 0).any())
    total, is_unordered, *is_negative = torch.stack(facts).tolist()
    if any(is_negative):
        raise ValueError("got a negative attention_mask; expected 1 at real tokens and 0 at padding, not a bias")
    return None if total == mask.numel() else mask, total, bool(is_unordered)


def _spread(per_slot: Tensor, x: Tensor, dim: int) -> Tensor:
    """View (B, S) as (B, 1, …, S, …, 1), S at axis `dim` of x."""
    shape = [1] * x.dim()
    shape[0], shape[dim] = per_slot.shape
    return per_slot.view(shape)


def _restore(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """From the front to the real slots of a mask (B, S); zeros elsewhere."""
    return x.gather(dim, _spread(places_before(mask), x, dim).expand_as(x)).masked_fill(~_spread(mask, x, dim), 0)


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
    def _lengths(self) -> tuple[int, ...]:
        """`counts` on a CPU, if rows are so long on average that they are moved one by one; else nothing."""
        is_long = self.counts.device.type == "cpu" and len(self.front) > _SHORT_ROW * len(self.counts)
        return tuple(self.counts.tolist()) if is_long else ()

    @cached_property
    def _sources(self) -> Tensor:
        """(B · T,), which real token is in each slot of the flattened aligned batch; n at padding."""
        sources = self.front.new_full((self.aligned_shape[0] * self.aligned_shape[1],), len(self.front))
        sources[self.front] = torch.arange(len(self.front), device=sources.device)
        return sources

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

    def _take_columns(self, x: Tensor) -> Tensor:
        if self._lengths:
            return torch.cat([x[:, row, :length] for row, length in enumerate(self._lengths)], dim=1)
        return x.flatten(1, 2).index_select(1, self.front)

    def _put_columns(self, tokens: Tensor) -> Tensor:
        if not self._lengths:
            return torch.constant_pad_nd(tokens, (0, 1)).index_select(1, self._sources).unflatten(1, self.aligned_shape)
        padded = tokens.new_empty(tokens.shape[0], *self.aligned_shape)
        for row, part in enumerate(tokens.split(self._lengths, dim=1)):
            padded[:, row, : part.shape[1]] = part
            padded[:, row, part.shape[1] :] = 0
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
