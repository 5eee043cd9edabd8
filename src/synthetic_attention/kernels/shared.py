"""softmax(R) · V where all examples share R: one softmax for the batch, one matrix product per head.

Without a key mask the weights P = softmax(R) are shared too, and so is the cost of the softmax:

    Y = P V        dV = Pᵀ g        dR = P ∘ (g Vᵀ − rowsum(P ∘ g Vᵀ))

With a mask, padding needs no softmax per example either. With E = exp(R − rowmax) and the 0/1 key mask m of an example,

    Y = E (m ∘ V) / E m        dR = E ∘ (g′ (m ∘ V)ᵀ − (g′ · Y) mᵀ),  g′ = g / E m

so the denominators of all examples are one more product, E mᵀ, and the backward keeps only them and Y.
In inference on a CPU P is kept between calls where R comes from parameters alone, until they change. (Elsewhere the
softmax takes less time than to see whether R has changed.)

The products run over width and batch together, V as (H, D·B, S): both GEMMs of a head are large, and a projection
that writes V in that order (`project_by_feature`) costs no copy.

Shape legend: B batch, H heads, T queries, S keys, D width of a value, N = D·B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..layout import is_traced
from ..logits import Positions, SharedLogits
from .blocks import block_softmax, blocks, exponentials, hide_later, operator, wide, without_autocast
from .blockwise import Attention
from .matmul import add_product, fingerprint, write_product

# E under a mask cannot vanish while a row's scores differ by less than this: exp(−60) is far from the end of float32.
SAFE_RANGE = 60.0
# Heads, rows and number of columns of a block, and its weights (H, T, S) in float32 or higher.
_Tile = tuple[slice, slice, int, Tensor]


@dataclass
class SharedCall:
    """softmax(scores) · value in blocks that fit into the caches of a CPU; `batched.py` has it for accelerators.

    Attributes:
        scores: (H, T, S).
        value: (H, D, B, S); m ∘ V with a mask.
        mask: (B, S), bool.
        offset: row t sees keys ≤ offset + t; None for all.
        dropout: (H, T, S), factors 0 or 1/(1−p) on the weights, one mask for the whole batch; or None.
    """

    scores: Tensor
    value: Tensor
    mask: Tensor | None
    offset: int | None
    dropout: Tensor | None

    def empty_outputs(self) -> tuple[Tensor, ...]:
        """Output (H, D, B, T), and with a mask the denominators (H, B, T): all −1 if the careful way was taken."""
        (heads, width, batch, _), rows = self.value.shape, self.scores.shape[1]
        norm = self.scores.new_empty(heads, 0 if self.mask is None else batch, rows, dtype=wide(self.scores))
        return self.value.new_empty(heads, width, batch, rows), norm

    def saved(self, outputs: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        """Without a mask the output and the denominators are not needed."""
        return outputs if self.mask is not None else (None, None, *outputs[2:])

    def forward(self) -> tuple[Tensor, ...]:
        out, norm = self.empty_outputs()
        # E is multiplied in the dtype of the values, and float16 ends at exp(−17).
        if self.mask is not None and (self.value.dtype == torch.float16 or not has_small_range(self.scores)):
            norm.fill_(-1)
            self.by_blocks().write(out.permute(2, 3, 0, 1))
        else:
            self.write(out, norm, self.weights())
        return out, norm

    def by_blocks(self) -> Attention:
        """The same with a softmax per example, the careful way."""
        value = self.value.permute(2, 0, 3, 1)
        return Attention(value, self.scores, mask=self.mask, offset=self.offset, kept=self.dropout)

    def gradients_by_blocks(self, grad: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
        """Gradients of scores and value, the careful way."""
        total = self.by_blocks().gradients(grad.permute(2, 3, 0, 1), (needs[1], needs[0], False))
        return [total.shared, total.value.permute(1, 3, 0, 2).contiguous()]

    def write(self, out: Tensor, norm: Tensor, tiles: Iterable[_Tile]) -> None:
        """Write the weighted sums to `out`; with a mask also the denominators, by which they are divided."""
        value, value_HNS, out_HNT = self.value, self.value.flatten(1, 2), out.flatten(1, 2)
        mask_SB = None if self.mask is None else self.mask.to(norm.dtype).mT
        for h, t, last, weights_HTS in tiles:
            if mask_SB is not None:
                norm[h, :, t] = (weights_HTS @ mask_SB[:last]).mT
            kept = weights_HTS if self.dropout is None else weights_HTS.mul_(self.dropout[h, t, :last])
            write_product(value_HNS[h, :, :last], kept.to(value.dtype).mT, out_HNT[h, :, t])
            if mask_SB is not None:
                out[h, :, :, t] /= nonzero(norm[h, :, t])[:, None]

    def empty_gradients(self, needs: Sequence[bool]) -> list[Tensor | None]:
        return [self.scores.new_empty(self.scores.shape), self.value.new_empty(self.value.shape)]

    def backward(self, grad: Tensor, saved: Sequence[Any], needs: Sequence[bool]) -> list[Tensor | None]:
        out, norm = saved
        if norm is not None and bool(norm.flatten()[0] < 0):
            return self.gradients_by_blocks(grad, needs)
        # Sums over blocks of rows: in float32, or many small addends would be lost in bfloat16.
        grad_value = torch.zeros(self.value.shape, dtype=wide(self.value), device=self.value.device)
        grad_scores = self.scores.new_empty(self.scores.shape if needs[0] else (0,), dtype=wide(self.scores))
        value, value_HNS, sum_HNS = self.value, self.value.flatten(1, 2), grad_value.flatten(1, 2)
        if self.mask is not None:
            mask_BS, norm = self.mask.to(norm.dtype), nonzero(norm)
        for h, t, last, weights_HTS in self.weights():
            grad_HDBT = grad[h, :, :, t]
            if self.mask is not None:
                grad_HDBT = grad_HDBT / norm[h, None, :, t]
                inner_HTB = (grad_HDBT * out[h, :, :, t]).sum(dim=1).mT
            grad_HNT = grad_HDBT.to(value.dtype).flatten(1, 2)
            keep = None if self.dropout is None else self.dropout[h, t, :last]
            kept = weights_HTS if keep is None else weights_HTS * keep
            add_product(sum_HNS[h, :, :last], grad_HNT, kept.to(value.dtype))
            if not needs[0]:
                continue
            grad_scores[h, t, last:] = 0
            block = grad_scores[h, t, :last]
            write_product(grad_HNT.mT, value_HNS[h, :, :last], block)
            if keep is not None:
                block *= keep
            if self.mask is not None:
                mask_HBS = mask_BS[None, :, :last].to(block.dtype).expand(block.shape[0], -1, -1)
                block.baddbmm_(inner_HTB.to(block.dtype), mask_HBS, alpha=-1)
                block *= weights_HTS
            elif block.is_contiguous():
                torch.ops.aten._softmax_backward_data.out(block, weights_HTS, -1, block.dtype, grad_input=block)
            else:
                # Its `out` has to be contiguous, though it does not check.
                block.copy_(torch.ops.aten._softmax_backward_data(block, weights_HTS, -1, block.dtype))
        return [grad_scores, grad_value]

    def weights(self) -> Iterator[_Tile]:
        """The blocks with softmax(R), or with E where there is a mask."""
        return _weights(self.scores, self.offset, block_softmax if self.mask is None else exponentials)


# The schema of a `SharedCall`.
ARGUMENTS = "Tensor scores, Tensor value, Tensor? mask, SymInt? offset, Tensor? dropout"
_forward = operator("shared", SharedCall, ARGUMENTS, 2, torch.Tag.cudagraph_unsafe)


def by_feature(value: Tensor, mask: Tensor | None) -> Tensor:
    """V (B, H, S, D), or m ∘ V with a mask, as (H, D, B, S)."""
    value = value.permute(1, 3, 0, 2)
    return value if mask is None else value * mask.to(value.dtype)


def shared_attention(
    scores: Tensor, value: Tensor, mask: Tensor | None, offset: int | None, dropout: Tensor | None
) -> Tensor:
    """softmax(scores) · value, as in `attend`, (B, H, T, D), a view of a contiguous (H, D, B, T).

    Arguments are those of `SharedCall`, but value is (B, H, S, D); fastest as a view of a contiguous (H, D, B, S).
    """
    out_HDBT, _ = _forward(scores, by_feature(value, mask), mask, offset, dropout)
    return out_HDBT.permute(2, 0, 3, 1)


def cached_attention(weights: Tensor, value: Tensor, mask: Tensor | None, offset: int | None) -> Tensor:
    """`shared_attention` in inference from P = softmax(scores), (H, T, S).

    A mask changes only the denominators, Y = P (m ∘ V) / P m, for any m: P is as good as E.
    """
    call = SharedCall(weights, by_feature(value, mask), mask, offset, None)
    out, norm = call.empty_outputs()
    with without_autocast(value.device.type):
        call.write(out, norm, ((h, t, last, weights[h, t, :last]) for h, t, last in _blocks(weights, offset)))
    return out.permute(2, 0, 3, 1)


def _blocks(scores: Tensor, offset: int | None) -> Iterator[tuple[slice, slice, int]]:
    return blocks(scores.shape, max(4, scores.element_size()), scores.device, offset)


def _weights(scores: Tensor, offset: int | None, normalise: Callable[[Tensor], Tensor]) -> Iterator[_Tile]:
    for h, t, last in _blocks(scores, offset):
        block = scores[h, t, :last].to(wide(scores))
        yield h, t, last, normalise(hide_later(block, offset, t.start, in_place=False))


def has_small_range(scores: Tensor) -> bool:
    """Whether no mask can leave a row only keys whose E is zero, because their scores are far below its maximum."""
    # Two passes: aminmax over one axis takes ten times as long as both.
    return bool((scores.amax(dim=-1) - scores.amin(dim=-1) < SAFE_RANGE).all())


def nonzero(norm: Tensor) -> Tensor:
    """Denominators with 1 in rows that see no key, where the numerator is 0."""
    return norm.masked_fill(norm == 0, 1)


@dataclass
class CachedSoftmax:
    """R and softmax(R), (H, T, S), where row t sees keys ≤ offset + t (None: all)."""

    scores: Tensor
    offset: int | None

    @cached_property
    def weights(self) -> Tensor:
        """softmax(R), zeros where a causal row sees nothing."""
        weights = torch.zeros(self.scores.shape, dtype=wide(self.scores), device=self.scores.device)
        with without_autocast("cpu"):
            for h, t, last, block in _weights(self.scores, self.offset, block_softmax):
                weights[h, t, :last] = block
        return weights

    @cached_property
    def has_small_range(self) -> bool:
        """Whether every row keeps a nonzero weight under any mask."""
        return has_small_range(self.scores)


class SoftmaxCache:
    """The last softmax of one function, after what it was made of. It is neither saved nor copied with a model."""

    # One attribute, as several threads may run one model.
    entry: tuple[Any, CachedSoftmax] | None = None

    def __reduce__(self) -> tuple[type[SoftmaxCache], tuple[()]]:
        return SoftmaxCache, ()


class CachedLogits(SharedLogits):
    """Shared scores at `positions` that `make` computes from parameters alone (cut to the part in use).

    Unless something is added to them, `attend` may keep their softmax in the cache of their function.
    """

    def __init__(
        self, cache: SoftmaxCache, positions: Positions, parameters: Sequence[Tensor], make: Callable[[], Tensor]
    ) -> None:
        self._cache, self._positions, self._parameters, self._make = cache, positions, parameters, make
        self.rows, self.is_shared = positions.rows, positions.key_index is None
        self.columns = positions.columns if positions.key_index is None else positions.key_index.shape[-1]
        self.shape = (1, 1, self.rows, self.columns)

    @property
    def scores(self) -> Tensor:  # type: ignore[override]
        return self._make()

    def lookup(self, offset: int | None) -> CachedSoftmax | None:
        """The softmax, cached, where row t sees keys ≤ offset + t; None in training, on a GPU and in compiled code."""
        positions = self._positions
        if positions.row_index is not None or torch.is_grad_enabled() or is_traced():
            return None
        if any(p.device.type != "cpu" or p.is_inference() for p in self._parameters):
            return None
        # Autocast changes the dtype in which scores are computed.
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        key = (positions.rows, positions.columns, offset, autocast, *map(fingerprint, self._parameters))
        entry = self._cache.entry
        # NaN is not equal to itself: scores that are not finite are never found in the cache.
        if entry is None or entry[0] != key:
            entry = self._cache.entry = key, CachedSoftmax(self.scores, offset)
        return entry[1]
