"""softmax(R) · V where all examples share R: one softmax for the batch, one matrix product per head.

Without a key mask the weights P = softmax(R) are themselves shared, and so is all that the softmax costs:

    Y = P V        dV = Pᵀ g        dR = P ∘ (g Vᵀ − rowsum(P ∘ g Vᵀ))

With one, padding still needs no softmax per example. With E = exp(R − rowmax) and the 0/1 key mask m of an example,

    Y = E (m ∘ V) / E m        dR = E ∘ (g′ (m ∘ V)ᵀ − (g′ · Y) mᵀ),  g′ = g / E m

so the denominators of all examples are one more product, E mᵀ, and the backward keeps only them and Y.
The products run with the batch beside the width, V as (H, D·B, S): both GEMMs of a head are large, and a
projection that writes V in that order (`attention.py` does) costs no copy.

Shape legend: B batch, H heads, T queries, S keys, D width of a value, N = D·B.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .block import block_bytes, block_softmax

__all__ = ["shared_attention"]

# E under a mask cannot vanish while a row's scores differ by less than this: exp(−60) is far from the end of float32.
SAFE_RANGE = 60.0


def shared_attention(
    scores: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool,
    query_offset: int,
    dropout: Tensor | None,
) -> Tensor:
    """softmax(scores) · value.

    Args:
        scores: (H, T, S).
        value: (B, H, S, D); fastest as a view of a contiguous (H, D, B, S).
        attention_mask: (B, S) bool, the keys that may be seen, or None.
        is_causal: row t sees keys ≤ query_offset + t.
        dropout: (H, T, S), factors 0 or 1/(1−p) on the weights, one mask for the whole batch; or None.

    Returns:
        (B, H, T, D), a view of a contiguous (H, D, B, T).
    """
    offset = query_offset if is_causal else None
    out_HDBT, _ = _forward(scores, value.permute(1, 3, 0, 2), attention_mask, offset, dropout)
    return out_HDBT.permute(2, 0, 3, 1)


def _blocks(scores: Tensor, offset: int | None) -> Iterator[tuple[slice, slice, int]]:
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


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _scores(scores: Tensor, h: slice, t: slice, last: int, offset: int | None) -> Tensor:
    """A copy of a block of R in float32 or higher, −inf where it is not allowed."""
    block = scores[h, t, :last].to(_wide(scores), copy=True)
    if offset is not None and offset + t.start < last - 1:
        hidden = torch.ones(block.shape[1:], dtype=torch.bool, device=block.device).triu(offset + t.start + 1)
        block.masked_fill_(hidden, -torch.inf)
    return block


def _exponentials(block: Tensor) -> Tensor:
    """exp(R − rowmax) in place of R; 0 in rows with nothing allowed."""
    maximum = block.amax(dim=-1, keepdim=True)
    return block.sub_(maximum.masked_fill_(maximum == -torch.inf, 0)).exp_()


def _needs_care(scores: Tensor, value: Tensor) -> bool:
    """Could a mask leave a row only keys whose E has vanished beside the row's maximum?"""
    # E is multiplied in the dtype of the values, and float16 ends at exp(−17).
    if value.dtype == torch.float16:
        return True
    lowest, highest = scores.aminmax(dim=-1)
    return not bool((highest - lowest < SAFE_RANGE).all())


def _one_by_one(scores: Tensor, mask: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Each example with its mask in the scores: the careful way, a softmax per example."""
    for b in range(mask.shape[0]):
        yield slice(b, b + 1), scores.masked_fill(~mask[b], -torch.inf)


@torch.library.custom_op("synthetic_attention::shared_forward", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _forward(
    scores: Tensor, value: Tensor, mask: Tensor | None, offset: int | None, dropout: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output (H, D, B, T), and the denominators (H, B, T) where there is a mask."""
    heads, width, batch, _ = value.shape
    rows = scores.shape[1]
    out = value.new_empty(heads, width, batch, rows)
    norm = scores.new_empty(heads, 0 if mask is None else batch, rows, dtype=_wide(scores))
    with torch.autocast(value.device.type, enabled=False):
        if mask is None:
            _forward_plain(out, scores, value, offset, dropout)
        elif _needs_care(scores, value):
            for b, own in _one_by_one(scores, mask):
                _forward_plain(out[:, :, b], own, value[:, :, b], offset, dropout)
        else:
            _forward_masked(out, norm, scores, value, mask, offset, dropout)
    return out, norm


def _forward_plain(out: Tensor, scores: Tensor, value: Tensor, offset: int | None, dropout: Tensor | None) -> None:
    value_HNS = value.flatten(1, 2)
    for h, t, last in _blocks(scores, offset):
        weights_HTS = block_softmax(_scores(scores, h, t, last, offset))
        if dropout is not None:
            weights_HTS *= dropout[h, t, :last]
        product = torch.bmm(value_HNS[h, :, :last], weights_HTS.to(value.dtype).mT)
        out[h, :, :, t] = product.view(-1, *out.shape[1:3], product.shape[-1])


def _forward_masked(
    out: Tensor,
    norm: Tensor,
    scores: Tensor,
    value: Tensor,
    mask: Tensor,
    offset: int | None,
    dropout: Tensor | None,
) -> None:
    value_HNS = (value * mask.to(value.dtype)).flatten(1, 2)
    mask_SB = mask.to(norm.dtype).mT
    for h, t, last in _blocks(scores, offset):
        e_HTS = _exponentials(_scores(scores, h, t, last, offset))
        norm_HBT = (e_HTS @ mask_SB[:last]).mT
        norm[h, :, t] = norm_HBT
        if dropout is not None:
            e_HTS *= dropout[h, t, :last]
        product = torch.bmm(value_HNS[h, :, :last], e_HTS.to(value.dtype).mT)
        product = product.view(-1, *out.shape[1:3], product.shape[-1])
        torch.div(product, _nonzero(norm_HBT)[:, None], out=out[h, :, :, t])


def _nonzero(norm: Tensor) -> Tensor:
    """Denominators with 1 in rows that see no key, where the numerator is 0."""
    return norm.masked_fill(norm == 0, 1)


@_forward.register_fake
def _forward_fake(
    scores: Tensor, value: Tensor, mask: Tensor | None, offset: int | None, dropout: Tensor | None
) -> tuple[Tensor, Tensor]:
    heads, width, batch, _ = value.shape
    rows = scores.shape[1]
    norm = scores.new_empty(heads, 0 if mask is None else batch, rows, dtype=_wide(scores))
    return value.new_empty(heads, width, batch, rows), norm


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
    train_scores: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of scores (H, T, S), empty unless `train_scores`, and of value (H, D, B, S)."""
    grad_scores = torch.zeros(scores.shape if train_scores else (0,), dtype=_wide(scores), device=scores.device)
    # Sums over blocks of rows: in float32, or many small addends would be lost in bfloat16.
    grad_value = torch.zeros_like(value, dtype=_wide(value), memory_format=torch.contiguous_format)
    with torch.autocast(value.device.type, enabled=False):
        if mask is None:
            _backward_plain(grad_scores, grad_value, grad, scores, value, offset, dropout)
        elif _needs_care(scores, value):
            for b, own in _one_by_one(scores, mask):
                parts = (grad[:, :, b], own, value[:, :, b], offset, dropout)
                own_value = torch.zeros_like(grad_value[:, :, b], memory_format=torch.contiguous_format)
                own_scores = torch.zeros_like(grad_scores)
                _backward_plain(own_scores, own_value, *parts)
                grad_value[:, :, b] = own_value
                grad_scores += own_scores
        else:
            assert out is not None
            assert norm is not None
            _backward_masked(grad_scores, grad_value, grad, scores, value, out, norm, mask, offset, dropout)
    return grad_scores.to(scores.dtype), grad_value.to(value.dtype)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, where total may be wider."""
    if total.dtype == a.dtype:
        total.baddbmm_(a, b)
    else:
        total += torch.bmm(a, b)


def _backward_plain(
    grad_scores: Tensor,
    grad_value: Tensor,
    grad: Tensor,
    scores: Tensor,
    value: Tensor,
    offset: int | None,
    dropout: Tensor | None,
) -> None:
    value_HNS, grad_HNT, sum_HNS = value.flatten(1, 2), grad.flatten(1, 2), grad_value.flatten(1, 2)
    for h, t, last in _blocks(scores, offset):
        weights_HTS = block_softmax(_scores(scores, h, t, last, offset))
        keep = None if dropout is None else dropout[h, t, :last]
        kept = weights_HTS if keep is None else weights_HTS * keep
        _add_product(sum_HNS[h, :, :last], grad_HNT[h, :, t], kept.to(value.dtype))
        if not grad_scores.numel():
            continue
        grad_weights = torch.bmm(grad_HNT[h, :, t].mT, value_HNS[h, :, :last]).to(weights_HTS.dtype)
        if keep is not None:
            grad_weights *= keep
        grad_scores[h, t, :last] = torch.ops.aten._softmax_backward_data(
            grad_weights, weights_HTS, -1, weights_HTS.dtype
        )


def _backward_masked(
    grad_scores: Tensor,
    grad_value: Tensor,
    grad: Tensor,
    scores: Tensor,
    value: Tensor,
    out: Tensor,
    norm: Tensor,
    mask: Tensor,
    offset: int | None,
    dropout: Tensor | None,
) -> None:
    value_HNS = (value * mask.to(value.dtype)).flatten(1, 2)
    grad = grad / _nonzero(norm)[:, None]
    inner_HBT = (grad * out.to(grad.dtype)).sum(dim=1)
    grad_HNT, sum_HNS = grad.to(value.dtype).flatten(1, 2), grad_value.flatten(1, 2)
    mask_BS = mask.to(norm.dtype)
    for h, t, last in _blocks(scores, offset):
        e_HTS = _exponentials(_scores(scores, h, t, last, offset))
        keep = None if dropout is None else dropout[h, t, :last]
        kept = e_HTS if keep is None else e_HTS * keep
        _add_product(sum_HNS[h, :, :last], grad_HNT[h, :, t], kept.to(value.dtype))
        if not grad_scores.numel():
            continue
        product = torch.bmm(grad_HNT[h, :, t].mT, value_HNS[h, :, :last]).to(e_HTS.dtype)
        if keep is not None:
            product *= keep
        inner_HTB = inner_HBT[h, :, t].mT
        product.baddbmm_(inner_HTB, mask_BS[None, :, :last].expand(inner_HTB.shape[0], -1, -1), alpha=-1)
        grad_scores[h, t, :last] = product.mul_(e_HTS)
    grad_value *= mask.to(grad_value.dtype)


@_backward.register_fake
def _backward_fake(
    grad: Tensor,
    scores: Tensor,
    value: Tensor,
    out: Tensor | None,
    norm: Tensor | None,
    mask: Tensor | None,
    offset: int | None,
    dropout: Tensor | None,
    train_scores: bool,
) -> tuple[Tensor, Tensor]:
    contiguous = torch.contiguous_format
    grad_scores = torch.empty_like(scores, memory_format=contiguous) if train_scores else scores.new_empty(0)
    return grad_scores, torch.empty_like(value, memory_format=contiguous)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    scores, value, mask, ctx.offset, dropout = inputs
    out, norm = output if mask is not None else (None, None)
    ctx.save_for_backward(scores, value, mask, dropout, out, norm)


def _autograd(ctx, grad: Tensor, _grad_norm: Tensor | None):  # type: ignore[no-untyped-def]
    scores, value, mask, dropout, out, norm = ctx.saved_tensors
    train = ctx.needs_input_grad[0]
    grad_scores, grad_value = _backward(grad, scores, value, out, norm, mask, ctx.offset, dropout, train)
    return grad_scores if train else None, grad_value, None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)
