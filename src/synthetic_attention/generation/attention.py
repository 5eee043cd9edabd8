"""Attention of one new token per row: what a layer keeps between the steps of the decode loop, and what it computes.

A source is what one result is generated from: a row of the batch, or all beams of it. The beams of a source are rows
of one matrix product over everything that the source holds, so nothing is copied when beams change places:

    keys and values   (B · H, slots · M, K), slot s holds the token at position s of each of the M beams
    ancestors         (B, M, slots, M), 1 where a beam of today (axis 1) came from a beam of that slot (axis 3)

With beams, logits of a position are spread over the M entries of its slot, and those that are not of an ancestor are
hidden. Cross-attention has keys and values of the source only, which all beams read.

Heads that share keys and values are rows of one product too: their queries are (B · G, H/G · M, K).

Shape legend: B sources, M beams, N = B · M rows, H heads (of a group), G of them with keys and values of their own, S
slots, K width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import SynthesizerAttention
from ..kernels.matmul import is_fast, is_plain, is_unchanged, onednn_linear, packed_linear
from ..layout import places_before
from ..logits import Positions
from ..synthesizers import SynthesizingFunction
from ..synthesizers.vanilla import Vanilla

Operation = Callable[[Tensor], Tensor]
Addition = Callable[[Tensor, Tensor], Tensor]


def prepare(module: Any, rows: int) -> Operation:
    """What a call of the module computes, from x (rows, in), as one operator where a call does nothing else.

    The one place that decides this: a projection with an adapter or quantized weights is called as a module.
    """
    if is_plain(module):
        weight, bias = module.weight, module.bias
        if (project := _by_onednn(weight, bias, rows)) is not None:
            return project
        columns = weight.t()
        # The operators that F.linear calls in the end, in two thirds of its time for one row.
        return (lambda x: torch.mm(x, columns)) if bias is None else (lambda x: torch.addmm(bias, x, columns))
    if is_unchanged(module, nn.LayerNorm):
        shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    if is_unchanged(module, nn.RMSNorm, nn.ReLU, nn.Embedding):
        return cast(Operation, module.forward)
    # An adapter finds the shape of a batch of single tokens.
    return lambda x: module(x[:, None]).squeeze(1)


def prepare_sum(module: Any, rows: int) -> Addition:
    """x + module(y), from x (rows, out) and y (rows, in), where it can with the sum in the product."""
    project = _by_onednn(module.weight, module.bias, rows) if is_plain(module) else prepare(module, rows)
    if project is not None:
        return lambda x, y: x + project(y)
    columns, bias = module.weight.t(), module.bias
    if bias is None:
        return lambda x, y: torch.addmm(x, y, columns)
    return lambda x, y: torch.addmm(x, y, columns).add_(bias)


def _by_onednn(weight: Tensor, bias: Tensor | None, rows: int) -> Operation | None:
    """The projection with oneDNN, where that is faster."""
    if (packed := packed_linear(weight, bias, rows)) is not None:
        return packed
    if is_fast(weight.new_empty(rows, weight.shape[1]), weight):
        return lambda x: onednn_linear(x, weight, bias)
    return None


class Slots:
    """The slots of a batch, the same for all layers.

    Attributes:
        sources, beams: B and M.
        length: tokens so far, the one of this step included.
        visible: (B, 1, M, length, M), `ancestors` of the filled slots; None with one beam.
        mask: (B, length), True at real tokens; None without padding.
        padding: (B, 1, 1, length), −inf at padding, else 0; None without.
    """

    def __init__(self, sources: int, beams: int, mask: Tensor | None, like: Tensor) -> None:
        self.sources, self.beams, self.length, self.like = sources, beams, 0, like
        self.mask = mask
        self._ancestors = like.new_empty(sources, beams, 0, beams) if beams > 1 else None
        self.visible: Tensor | None = None
        self.padding: Tensor | None = None
        # By number of heads.
        self._hidden: dict[int, Tensor | None] = {}

    def reserve(self, capacity: int) -> None:
        """Make room; in new slots each beam is its own ancestor."""
        if self._ancestors is not None:
            new = torch.eye(self.beams, dtype=self.like.dtype, device=self.like.device)[:, None]
            new = new.expand(self.sources, -1, capacity - self._ancestors.shape[2], -1)
            self._ancestors = torch.cat([self._ancestors, new], dim=2)

    def advance(self) -> None:
        """Go on to the next token."""
        self.length += 1
        vars(self).pop("positions", None)
        self._hidden.clear()
        if self._ancestors is not None:
            self.visible = self._ancestors[:, None, :, : self.length]
        if self.mask is not None:
            self.mask = F.pad(self.mask, (0, self.length - self.mask.shape[1]), value=True)
            padding = torch.zeros_like(self.mask, dtype=self.like.dtype).masked_fill(~self.mask, -torch.inf)
            self.padding = padding[:, None, None]

    @cached_property
    def positions(self) -> Positions:
        """The rows and columns that functions are asked for: M rows at the newest position."""
        places = None if self.mask is None else places_before(self.mask)
        if places is None:
            rows = torch.full((self.beams,), self.length - 1, device=self.like.device)
        else:
            rows = places[:, -1:].expand(-1, self.beams)
        return Positions(self.beams, self.length, rows, places)

    def hidden(self, heads: int) -> Tensor | None:
        """(B, heads, M, length, M), −inf at padding and at entries not of an ancestor, else 0; None for zeros."""
        if heads not in self._hidden:
            hidden = None if self.padding is None else self.padding[..., None]
            if self.visible is not None:
                hidden = self.visible.log() if hidden is None else self.visible.log() + hidden
            self._hidden[heads] = None if hidden is None else hidden.expand(-1, heads, -1, -1, -1).contiguous()
        return self._hidden[heads]

    def spread(self, scores: Tensor | None, heads: int) -> Tensor | None:
        """Logits (B or 1, H, M or 1, length) of positions to those of all entries, (B · H, M, length · M)."""
        every = self.hidden(heads if scores is None else 1)
        if scores is not None:
            every = scores[..., None] if every is None else scores[..., None] + every
        if every is None:
            return None
        return every.expand(self.sources, -1, -1, -1, -1).reshape(self.sources * heads, self.beams, -1)

    def join_heads(self, y: Tensor, heads: int) -> Tensor:
        """Results (B · H, M, K), or with shared values (B · G, H/G · M, K), to (N, H · K)."""
        if self.beams == 1:
            return y.view(self.sources, -1)
        y = y.view(self.sources, heads, self.beams, -1).transpose(1, 2)
        return y.reshape(self.sources * self.beams, -1)

    def reorder(self, rows: Tensor) -> None:
        """Row n becomes what row rows[n] was, of the same source."""
        assert self._ancestors is not None
        flat = self._ancestors.view(self.sources * self.beams, -1)[:, : self.length * self.beams]
        flat.copy_(flat.index_select(0, rows))

    def keep(self, sources: Tensor) -> None:
        """Drop all sources but these."""
        self.sources = len(sources)
        if self.mask is not None:
            self.mask = self.mask.index_select(0, sources)
        if self._ancestors is not None:
            self._ancestors = self._ancestors.index_select(0, sources)


class Buffer:
    """Keys or values of the tokens so far, (B · H, slots · M, K)."""

    def __init__(self, heads: int, width: int, slots: Slots) -> None:
        self.heads, self.width, self._slots = heads, width, slots
        self._set(slots.like.new_empty(slots.sources, heads, 0, slots.beams, width))

    def reserve(self, capacity: int) -> None:
        """Make room for as many slots."""
        sources, heads, filled, *sizes = self._states.shape
        new = self._states.new_empty(sources, heads, capacity, *sizes)
        new[:, :, :filled] = self._states
        self._set(new)

    def fill(self, prompt: Tensor) -> None:
        """Store (B, H, P, K), the same for all beams."""
        self._states[:, :, : prompt.shape[2]] = prompt[:, :, :, None]

    def append(self, new: Tensor) -> Tensor:
        """Store new states (N, H · K); return the states of all entries, (B · H, length · M, K)."""
        slots = self._slots
        slot = self._states.select(2, slots.length - 1)
        if slots.beams == 1:
            slot.copy_(new.view(slot.shape))
        else:
            slot.copy_(new.view(slots.sources, slots.beams, self.heads, self.width).transpose(1, 2))
        return self._flat.narrow(1, 0, slots.length * slots.beams)

    def keep(self, sources: Tensor) -> None:
        """Drop all sources but these."""
        self._set(self._states.index_select(0, sources))

    def _set(self, states: Tensor) -> None:
        self._states = states
        self._flat = states.view(states.shape[0] * states.shape[1], -1, states.shape[4])


class HeadGroup:
    """Heads with one synthesizing function or mixture: S(X) = Σ α · (fixed + computed + dot product).

    `fixed` logits ignore the input: rows for the next positions are made ahead, as a softmax if there are no others.
    `computed` ones are made by the function from the new token. Dot products read the keys of all slots.
    """

    def __init__(self, function: SynthesizingFunction, heads: range, unit: int, width: int, slots: Slots) -> None:
        shared, rows = len(heads) // unit, slots.sources * slots.beams
        self.heads, self.unit, self.slots = len(heads), unit, slots
        self.values = Buffer(shared, width, slots)
        # The part of a bias (…, H, T, S).
        self.own = (..., slice(heads.start, heads.stop), slice(None), slice(None))
        self.fixed: list[tuple[Any, Tensor | None]] = []
        self.computed: list[tuple[Any, Tensor | None]] = []
        self.keys: Buffer | None = None
        alpha = function.weights()
        for index, part in enumerate(function.components):
            weight = None if alpha is None else alpha[index][:, None, None]
            if part.key_heads:
                assert isinstance(part, Vanilla)
                self.keys, self.vanilla = Buffer(shared, width, slots), part
                self.query_scale: float | Tensor = part.scale if weight is None else weight[..., 0] * part.scale
                self.project_query = self._normalized(prepare(part.q_proj, rows), part.q_norm)
                self.project_key = self._normalized(prepare(part.k_proj, rows), part.k_norm)
            elif part.num_features:
                self.computed.append((part, weight))
            else:
                self.fixed.append((part, weight))
        self.is_fixed = self.keys is None and not self.computed
        # (1, H, 1, columns) for each position from `_first` on.
        self._rows: Sequence[Tensor] = ()
        self._first = 0

    def _normalized(self, project: Operation, norm: Any) -> Operation:
        return project if norm is None else lambda x: self.vanilla.normalize(project(x), norm)

    def _rotated(self, x: Tensor) -> Tensor:
        """Queries or keys (N, H · K) with rotary positions."""
        slots = self.slots
        if self.vanilla.rotary is None:
            return x
        heads = x.view(slots.sources, slots.beams, -1, self.values.width).transpose(1, 2)
        return self.vanilla.rotary(heads, slots.positions).transpose(1, 2).reshape(x.shape)

    def _fixed_terms(self, positions: Positions, bias: Tensor | None) -> list[Tensor]:
        terms = [_weighted(part((), positions, None).dense(), weight) for part, weight in self.fixed]
        return terms if bias is None else [*terms, bias[self.own]]

    def make_rows(self, first: int, last: int, bias: Tensor | None) -> None:
        """Make the fixed logits of positions from `first` to before `last`; bias (H, rows, columns) is of all heads."""
        rows = last - first
        table = _sum(self._fixed_terms(Positions(rows, last), bias))
        if table is None:
            return
        if self.is_fixed:
            later = torch.ones(rows, last, dtype=torch.bool, device=table.device).triu_(first + 1)
            table = softmax(table.masked_fill(later, -torch.inf))
        self._rows, self._first = table.transpose(0, 1)[:, None, :, None].contiguous().unbind(), first

    def scores(self, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """Logits of the positions, (B or 1, H, M or 1, length); None if there are dot products only.

        The softmax of fixed logits, where padding does not make them differ by example.
        """
        slots, terms = self.slots, list[Tensor]()
        if slots.padding is not None:
            # All beams of a source have the same.
            now = slots.positions
            row = Positions(1, now.columns, now.queries(x.device)[..., :1], now.key_index)
            terms = self._fixed_terms(row, bias)
        elif self._rows:
            terms.append(self._rows[slots.length - 1 - self._first].narrow(3, 0, slots.length))
        for part, weight in self.computed:
            features = [
                y.reshape(slots.sources, slots.beams, self.heads, -1).transpose(1, 2) for y in part.project(x[:, None])
            ]
            terms.append(_weighted(part(features, slots.positions, None).dense(slots.length), weight))
        return _sum(terms)

    def __call__(self, x: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Attend from x (N, d_model), whose values are (N, G · K), to all tokens so far: (N, H · K)."""
        slots, values, scores = self.slots, self.values.append(value), self.scores(x, bias)
        if self.keys is None:
            assert scores is not None
            weights = scores
            if not self.is_fixed or slots.padding is not None:
                weights = softmax(scores if slots.padding is None else scores + slots.padding)
            if slots.visible is not None:
                weights = weights[..., None] * slots.visible
            elif slots.sources > 1:
                weights = weights.expand(slots.sources, -1, -1, -1)
            weights = weights.reshape(slots.sources * self.heads, slots.beams, -1)
        else:
            query = self._rotated(self.project_query(x))
            key = self.keys.append(self._rotated(self.project_key(x)))
            query = query.view(slots.sources, slots.beams, self.heads, -1) * self.query_scale
            query = query.transpose(1, 2).reshape(len(key), self.unit * slots.beams, -1)
            others = slots.spread(scores, self.heads)
            if others is not None and self.unit > 1:
                others = others.reshape(*query.shape[:2], -1)
            scores = torch.bmm(query, key.mT) if others is None else torch.baddbmm(others, query, key.mT)
            weights = softmax(scores)
        if self.unit > 1:
            weights = weights.reshape(len(values), self.unit * slots.beams, -1)
        return slots.join_heads(torch.bmm(weights, values), self.heads)


def _sum(terms: list[Tensor]) -> Tensor | None:
    return sum(terms[1:], start=terms[0]) if terms else None


def _weighted(scores: Tensor, weight: Tensor | None) -> Tensor:
    return scores if weight is None else scores * weight


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis, in float32 or wider."""
    if scores.dtype in (torch.float32, torch.float64):
        return torch.softmax(scores, -1)
    return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)


class SelfAttentionStep:
    """A step of a `SynthesizerAttention`, group of heads by group of heads."""

    def __init__(self, layer: SynthesizerAttention, slots: Slots) -> None:
        rows = slots.sources * slots.beams
        self.project, self.add_projected = prepare(layer.v_proj, rows), prepare_sum(layer.out_proj, rows)
        heads, sizes = range(layer.num_heads), (layer.group_size, layer.head_dim, slots)
        self.groups = [HeadGroup(function, heads[part], *sizes) for part, function in layer.function.groups()]
        self.values = [group.values for group in self.groups]
        self.keys = [group.keys for group in self.groups if group.keys is not None]
        self.sizes = [buffer.heads * layer.head_dim for buffer in self.values]

    @staticmethod
    def can_step(layer: SynthesizerAttention) -> bool:
        """Whether this class computes what a call of the layer does, by its functions."""
        groups = [function for _, function in layer.function.groups()]
        parts = [layer.function, *groups, *(part for function in groups for part in function.components)]
        # At most one function of a group has keys, and that is vanilla.
        keyed = [[type(part) for part in function.components if part.key_heads] for function in groups]
        return all(is_unchanged(part, type(part)) for part in parts) and all(k in ([], [Vanilla]) for k in keyed)

    def make_rows(self, first: int, last: int, bias: Tensor | None) -> None:
        """Make ahead what does not depend on the tokens."""
        for group in self.groups:
            group.make_rows(first, last, bias)

    def fill(self, keys: Tensor, values: Tensor) -> None:
        """Store the states of prompts: keys (B, those of all groups, P, K), values (B, G, P, K)."""
        for buffers, states in ((self.values, values), (self.keys, keys)):
            parts = states.split([buffer.heads for buffer in buffers], dim=1)
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.fill(part)

    def __call__(self, total: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """total + attention(x), all (N, d_model); bias (B, H, 1, length) only under padding, else it is in the rows."""
        value = self.project(x)
        if len(self.groups) == 1:
            return self.add_projected(total, self.groups[0](x, value, bias))
        values = value.split(self.sizes, dim=1)
        y = [group(x, own, bias) for group, own in zip(self.groups, values, strict=True)]
        return self.add_projected(total, torch.cat(y, dim=1))
