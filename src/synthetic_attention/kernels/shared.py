"""softmax(R) · V where all examples share R: one softmax for the batch, one matrix product per head.

Without a key mask the weights P = softmax(R) are shared too, and so is the cost of the softmax:

    Y = P V        dV = Pᵀ g        dR = P ∘ (g Vᵀ − rowsum(P ∘ g Vᵀ))

With a mask, padding needs no softmax per example either. With E = exp(R − rowmax) and the 0/1 key mask m of an example,

    Y = E (m ∘ V) / E m        dR = E ∘ (g′ (m ∘ V)ᵀ − (g′ · Y) mᵀ),  g′ = g / E m

so the denominators of all examples are one more product, E mᵀ, and the backward keeps only them and Y.
The products run over width and batch together, V as (H, D·B, S): both GEMMs of a head are large, and a projection
that writes V in that order (`project_by_feature`) costs no copy.

Shape legend: B batch, H heads, T queries, S keys, D width of a value, N = D·B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from .blocks import block_softmax, blocks, hide_later, refuse_second_derivative, wide, without_autocast
from .onednn import add_product, write_product

# E under a mask cannot vanish while a row's scores differ by less than this: exp(−60) is far from the end of float32.
SAFE_RANGE = 60.0


def shared_attention(
    scores: Tensor,
    value: Tensor,
    mask: Tensor | None,
    offset: int | None,
    dropout: Tensor | None,
    value_is_masked: bool = False,
) -> Tensor:
    """softmax(scores) · value, of scores (H, T, S), as in `attend`; row t sees keys ≤ offset + t, or all.

    Args:
        value: (B, H, S, D); fastest as a view of a contiguous (H, D, B, S).
        dropout: (H, T, S), factors 0 or 1/(1−p) on the weights, one mask for the whole batch; or None.

    Returns:
        (B, H, T, D), a view of a contiguous (H, D, B, T).
    """
    out_HDBT, _ = _forward(scores, value.permute(1, 3, 0, 2), mask, offset, dropout, value_is_masked)
    return out_HDBT.permute(2, 0, 3, 1)


def cached_attention(
    weights: Tensor, value: Tensor, mask: Tensor | None, offset: int | None, value_is_masked: bool
) -> Tensor:
    """`shared_attention` in inference from P = softmax(scores), (H, T, S).

    A mask changes only the denominators, Y = P (m ∘ V) / P m, for any m: P is as good as E.
    """
    value = value.permute(1, 3, 0, 2)
    out, norm = _results(weights, value, mask)
    with without_autocast(value.device.type):
        if mask is not None and not value_is_masked:
            value = value * mask.to(value.dtype)
        tiles = ((h, t, last, weights[h, t, :last], None) for h, t, last in _blocks(weights, offset))
        _products(out, norm, tiles, value, mask)
    return out.permute(2, 0, 3, 1)


def _one_by_one(scores: Tensor, mask: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Each example with its mask in the scores: the careful way, a softmax per example."""
    for b in range(mask.shape[0]):
        yield slice(b, b + 1), scores.masked_fill(~mask[b], -torch.inf)


@torch.library.custom_op("synthetic_attention::shared_forward", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _forward(
    scores: Tensor,
    value: Tensor,
    mask: Tensor | None,
    offset: int | None,
    dropout: Tensor | None,
    value_is_masked: bool,
) -> tuple[Tensor, Tensor]:
    """Output (H, D, B, T), and with a mask the denominators (H, B, T): all −1 if the careful way was taken."""
    out, norm = _results(scores, value, mask)
    with without_autocast(value.device.type):
        # E is multiplied in the dtype of the values, and float16 ends at exp(−17).
        if mask is not None and (value.dtype == torch.float16 or not has_small_range(scores)):
            norm.fill_(-1)
            for b, own in _one_by_one(scores, mask):
                alone = torch.empty_like(out[:, :, b], memory_format=torch.contiguous_format)
                _products(alone, norm, _weights(own, offset, dropout, block_softmax), value[:, :, b], None)
                out[:, :, b] = alone
        else:
            if mask is not None and not value_is_masked:
                value = value * mask.to(value.dtype)
            normalise = block_softmax if mask is None else exponentials
            _products(out, norm, _weights(scores, offset, dropout, normalise), value, mask)
    return out, norm


def _results(scores: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    heads, width, batch, _ = value.shape
    rows = scores.shape[1]
    norm = scores.new_empty(heads, 0 if mask is None else batch, rows, dtype=wide(scores))
    return value.new_empty(heads, width, batch, rows), norm


# Heads, rows and number of columns of a block, its weights (H, T, S) in float32 or higher, its dropout factors.
_Tile = tuple[slice, slice, int, Tensor, Tensor | None]


def _blocks(scores: Tensor, offset: int | None) -> Iterator[tuple[slice, slice, int]]:
    return blocks(scores.shape, max(4, scores.element_size()), scores.device, offset)


def _weights(
    scores: Tensor, offset: int | None, dropout: Tensor | None, normalise: Callable[[Tensor], Tensor]
) -> Iterator[_Tile]:
    """The blocks with softmax(R), or with E."""
    for h, t, last in _blocks(scores, offset):
        block = scores[h, t, :last].to(wide(scores))
        if offset is not None and offset + t.start < last - 1:
            block = hide_later(block.clone(), offset + t.start)
        weights_HTS = normalise(block)
        yield h, t, last, weights_HTS, None if dropout is None else dropout[h, t, :last]


def _products(out: Tensor, norm: Tensor, tiles: Iterable[_Tile], value: Tensor, mask: Tensor | None) -> None:
    """Write the weighted sums to `out`; with a mask also the denominators, by which they are divided."""
    value_HNS, out_HNT = value.flatten(1, 2), out.flatten(1, 2)
    mask_SB = None if mask is None else mask.to(norm.dtype).mT
    for h, t, last, weights_HTS, keep in tiles:
        if mask_SB is not None:
            norm[h, :, t] = (weights_HTS @ mask_SB[:last]).mT
        kept = weights_HTS if keep is None else weights_HTS.mul_(keep)
        write_product(value_HNS[h, :, :last], kept.to(value.dtype).mT, out_HNT[h, :, t])
        if mask_SB is not None:
            out[h, :, :, t] /= nonzero(norm[h, :, t])[:, None]


@_forward.register_fake
def _forward_fake(scores: Tensor, value: Tensor, mask: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return _results(scores, value, mask)


@torch.library.custom_op("synthetic_attention::shared_backward", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _backward(
    grad: Tensor,
    scores: Tensor,
    value: Tensor,
    out: Tensor | None,
    norm: Tensor | None,
    mask: Tensor | None,
    offset: int | None,
    dropout: Tensor | None,
    value_is_masked: bool,
    train_scores: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of scores (H, T, S), empty unless `train_scores`, and of value (H, D, B, S)."""
    grad_scores = torch.empty(scores.shape if train_scores else (0,), dtype=wide(scores), device=scores.device)
    # Sums over blocks of rows: in float32, or many small addends would be lost in bfloat16.
    grad_value = torch.zeros_like(value, dtype=wide(value), memory_format=torch.contiguous_format)
    with without_autocast(value.device.type):
        if mask is None:
            _add_gradients(grad_scores, grad_value, _weights(scores, offset, dropout, block_softmax), grad, value)
        elif norm is None or out is None or bool(norm.flatten()[0] < 0):
            for b, own in _one_by_one(scores, mask):
                own_value = torch.zeros_like(grad_value[:, :, b], memory_format=torch.contiguous_format)
                own_scores = torch.empty_like(grad_scores)
                tiles = _weights(own, offset, dropout, block_softmax)
                _add_gradients(own_scores, own_value, tiles, grad[:, :, b], value[:, :, b])
                grad_value[:, :, b] = own_value
                grad_scores = own_scores if b.start == 0 else grad_scores.add_(own_scores)
        else:
            masked = value if value_is_masked else value * mask.to(value.dtype)
            tiles = _weights(scores, offset, dropout, exponentials)
            _add_gradients(grad_scores, grad_value, tiles, grad, masked, (out, nonzero(norm), mask.to(norm.dtype)))
            if not value_is_masked:
                grad_value *= mask.to(grad_value.dtype)
    return grad_scores.to(scores.dtype), grad_value.to(value.dtype)


def _add_gradients(
    grad_scores: Tensor,
    grad_value: Tensor,
    tiles: Iterable[_Tile],
    grad: Tensor,
    value: Tensor,
    masked: tuple[Tensor, Tensor, Tensor] | None = None,
) -> None:
    """Add the gradients of the blocks. `masked`, where weights are E: output, denominators (H, B, T), mask (B, S)."""
    value_HNS, sum_HNS = value.flatten(1, 2), grad_value.flatten(1, 2)
    for h, t, last, weights_HTS, keep in tiles:
        grad_HDBT = grad[h, :, :, t]
        if masked is not None:
            out, norm, mask_BS = masked
            grad_HDBT = grad_HDBT / norm[h, None, :, t]
            inner_HTB = (grad_HDBT * out[h, :, :, t]).sum(dim=1).mT
        grad_HNT = grad_HDBT.to(value.dtype).flatten(1, 2)
        kept = weights_HTS if keep is None else weights_HTS * keep
        add_product(sum_HNS[h, :, :last], grad_HNT, kept.to(value.dtype))
        if not grad_scores.numel():
            continue
        grad_scores[h, t, last:] = 0
        block = grad_scores[h, t, :last]
        if block.dtype == value.dtype:
            write_product(grad_HNT.mT, value_HNS[h, :, :last], block)
        else:
            block.copy_(torch.bmm(grad_HNT.mT, value_HNS[h, :, :last]))
        if keep is not None:
            block *= keep
        if masked is not None:
            mask_HBS = mask_BS[None, :, :last].to(block.dtype).expand(block.shape[0], -1, -1)
            block.baddbmm_(inner_HTB.to(block.dtype), mask_HBS, alpha=-1)
            block *= weights_HTS
        elif block.is_contiguous():
            torch.ops.aten._softmax_backward_data.out(block, weights_HTS, -1, block.dtype, grad_input=block)
        else:
            # Its `out` has to be contiguous, though it does not check.
            block.copy_(torch.ops.aten._softmax_backward_data(block, weights_HTS, -1, block.dtype))


@_backward.register_fake
def _backward_fake(grad: Tensor, scores: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    contiguous, train_scores = torch.contiguous_format, others[-1]
    grad_scores = torch.empty_like(scores, memory_format=contiguous) if train_scores else scores.new_empty(0)
    return grad_scores, torch.empty_like(value, memory_format=contiguous)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    scores, value, mask, ctx.offset, dropout, ctx.value_is_masked = inputs
    out, norm = output if mask is not None else (None, None)
    ctx.save_for_backward(scores, value, mask, dropout, out, norm)


def _autograd(ctx, grad: Tensor, _grad_norm: Tensor | None):  # type: ignore[no-untyped-def]
    scores, value, mask, dropout, out, norm = ctx.saved_tensors
    train = ctx.needs_input_grad[0]
    grad_scores, grad_value = _backward(
        grad, scores, value, out, norm, mask, ctx.offset, dropout, ctx.value_is_masked, train
    )
    return grad_scores if train else None, grad_value, None, None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)
_backward.register_autograd(refuse_second_derivative)


def softmax(scores: Tensor, offset: int | None) -> Tensor:
    """All weights (H, T, S), zeros where a causal row sees nothing."""
    weights = torch.zeros(scores.shape, dtype=wide(scores), device=scores.device)
    for h, t, last, block, _ in _weights(scores, offset, None, block_softmax):
        weights[h, t, :last] = block
    return weights


def exponentials(block: Tensor) -> Tensor:
    """exp(R − rowmax); 0 in rows with nothing allowed."""
    maximum = block.amax(dim=-1, keepdim=True)
    return (block - maximum.masked_fill_(maximum == -torch.inf, 0)).exp_()


def has_small_range(scores: Tensor) -> bool:
    """Whether no mask can leave a row only keys whose E is zero, because their scores are far below its maximum."""
    # Two passes: aminmax over one axis takes ten times as long as both.
    return bool((scores.amax(dim=-1) - scores.amin(dim=-1) < SAFE_RANGE).all())


def nonzero(norm: Tensor) -> Tensor:
    """Denominators with 1 in rows that see no key, where the numerator is 0."""
    return norm.masked_fill(norm == 0, 1)
