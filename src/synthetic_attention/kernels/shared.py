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

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .blocks import add_product, block_bytes, block_softmax, refuse_second_derivative, wide

__all__ = ["block_scores", "blocks", "needs_care", "nonzero", "shared_attention"]

# E under a mask cannot vanish while a row's scores differ by less than this: exp(−60) is far from the end of float32.
SAFE_RANGE = 60.0


def shared_attention(
    scores: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool,
    query_offset: int,
    dropout: Tensor | None,
    value_is_masked: bool = False,
) -> Tensor:
    """softmax(scores) · value.

    Args:
        scores: (H, T, S).
        value: (B, H, S, D); fastest as a view of a contiguous (H, D, B, S).
        attention_mask: (B, S) bool, the keys that may be seen, or None.
        is_causal: row t sees keys ≤ query_offset + t.
        dropout: (H, T, S), factors 0 or 1/(1−p) on the weights, one mask for the whole batch; or None.
        value_is_masked: value is zero at masked keys and its gradient there is not looked at.

    Returns:
        (B, H, T, D), a view of a contiguous (H, D, B, T).
    """
    offset = query_offset if is_causal else None
    out_HDBT, _ = _forward(scores, value.permute(1, 3, 0, 2), attention_mask, offset, dropout, value_is_masked)
    return out_HDBT.permute(2, 0, 3, 1)


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
    with torch.autocast(value.device.type, enabled=False):
        if mask is None:
            _forward_plain(out, scores, value, offset, dropout)
        elif needs_care(scores, value):
            norm.fill_(-1)
            for b, own in _one_by_one(scores, mask):
                alone = torch.empty_like(out[:, :, b], memory_format=torch.contiguous_format)
                _forward_plain(alone, own, value[:, :, b], offset, dropout)
                out[:, :, b] = alone
        else:
            masked = value if value_is_masked else value * mask.to(value.dtype)
            _forward_masked(out, norm, scores, masked, mask, offset, dropout)
    return out, norm


def _results(scores: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    heads, width, batch, _ = value.shape
    rows = scores.shape[1]
    norm = scores.new_empty(heads, 0 if mask is None else batch, rows, dtype=wide(scores))
    return value.new_empty(heads, width, batch, rows), norm


def _forward_plain(out: Tensor, scores: Tensor, value: Tensor, offset: int | None, dropout: Tensor | None) -> None:
    value_HNS, out_HNT = value.flatten(1, 2), out.flatten(1, 2)
    for h, t, last in blocks(scores, offset):
        weights_HTS = block_softmax(block_scores(scores, h, t, last, offset))
        if dropout is not None:
            weights_HTS *= dropout[h, t, :last]
        torch.bmm(value_HNS[h, :, :last], weights_HTS.to(value.dtype).mT, out=out_HNT[h, :, t])


def _forward_masked(
    out: Tensor,
    norm: Tensor,
    scores: Tensor,
    value: Tensor,
    mask: Tensor,
    offset: int | None,
    dropout: Tensor | None,
) -> None:
    value_HNS, out_HNT = value.flatten(1, 2), out.flatten(1, 2)
    mask_SB = mask.to(norm.dtype).mT
    for h, t, last in blocks(scores, offset):
        e_HTS = exponentials(block_scores(scores, h, t, last, offset))
        norm_HBT = (e_HTS @ mask_SB[:last]).mT
        norm[h, :, t] = norm_HBT
        if dropout is not None:
            e_HTS *= dropout[h, t, :last]
        torch.bmm(value_HNS[h, :, :last], e_HTS.to(value.dtype).mT, out=out_HNT[h, :, t])
        out[h, :, :, t] /= nonzero(norm_HBT)[:, None]


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
    with torch.autocast(value.device.type, enabled=False):
        if mask is None:
            _backward_plain(grad_scores, grad_value, grad, scores, value, offset, dropout)
        elif norm is None or bool(norm.flatten()[0] < 0):
            for b, own in _one_by_one(scores, mask):
                parts = (grad[:, :, b], own, value[:, :, b], offset, dropout)
                own_value = torch.zeros_like(grad_value[:, :, b], memory_format=torch.contiguous_format)
                own_scores = torch.empty_like(grad_scores)
                _backward_plain(own_scores, own_value, *parts)
                grad_value[:, :, b] = own_value
                grad_scores = own_scores if b.start == 0 else grad_scores.add_(own_scores)
        else:
            assert out is not None
            masked = value if value_is_masked else value * mask.to(value.dtype)
            _backward_masked(grad_scores, grad_value, grad, scores, masked, out, norm, mask, offset, dropout)
            if not value_is_masked:
                grad_value *= mask.to(grad_value.dtype)
    return grad_scores.to(scores.dtype), grad_value.to(value.dtype)


def _product_into(grad_scores: Tensor, h: slice, t: slice, last: int, a: Tensor, b: Tensor) -> Tensor:
    """Write a @ b to a block of `grad_scores`, zeros to the columns after it; returns the block."""
    grad_scores[h, t, last:] = 0
    block = grad_scores[h, t, :last]
    if block.dtype == a.dtype:
        return torch.bmm(a, b, out=block)
    return block.copy_(torch.bmm(a, b))


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
    for h, t, last in blocks(scores, offset):
        weights_HTS = block_softmax(block_scores(scores, h, t, last, offset))
        keep = None if dropout is None else dropout[h, t, :last]
        kept = weights_HTS if keep is None else weights_HTS * keep
        add_product(sum_HNS[h, :, :last], grad_HNT[h, :, t], kept.to(value.dtype))
        if not grad_scores.numel():
            continue
        block = _product_into(grad_scores, h, t, last, grad_HNT[h, :, t].mT, value_HNS[h, :, :last])
        if keep is not None:
            block *= keep
        if block.is_contiguous():
            torch.ops.aten._softmax_backward_data.out(block, weights_HTS, -1, block.dtype, grad_input=block)
        else:
            # Its `out` has to be contiguous, though it does not check.
            block.copy_(torch.ops.aten._softmax_backward_data(block, weights_HTS, -1, block.dtype))


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
    value_HNS, sum_HNS = value.flatten(1, 2), grad_value.flatten(1, 2)
    norm, mask_BS = nonzero(norm), mask.to(norm.dtype)
    for h, t, last in blocks(scores, offset):
        grad_HDBT = grad[h, :, :, t] / norm[h, None, :, t]
        inner_HBT = (grad_HDBT * out[h, :, :, t]).sum(dim=1)
        grad_HNT = grad_HDBT.to(value.dtype).flatten(1, 2)
        e_HTS = exponentials(block_scores(scores, h, t, last, offset))
        keep = None if dropout is None else dropout[h, t, :last]
        kept = e_HTS if keep is None else e_HTS * keep
        add_product(sum_HNS[h, :, :last], grad_HNT, kept.to(value.dtype))
        if not grad_scores.numel():
            continue
        block = _product_into(grad_scores, h, t, last, grad_HNT.mT, value_HNS[h, :, :last])
        if keep is not None:
            block *= keep
        inner_HTB = inner_HBT.mT.to(block.dtype)
        masked_HBS = mask_BS[None, :, :last].to(block.dtype).expand(inner_HTB.shape[0], -1, -1)
        block.baddbmm_(inner_HTB, masked_HBS, alpha=-1)
        block *= e_HTS


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
    """Whether a mask could leave a row only keys whose E is zero, because their scores are far below its maximum."""
    # E is multiplied in the dtype of the values, and float16 ends at exp(−17).
    if value.dtype == torch.float16:
        return True
    # Two passes: aminmax over one axis takes ten times as long as both.
    return not bool((scores.amax(dim=-1) - scores.amin(dim=-1) < SAFE_RANGE).all())


def nonzero(norm: Tensor) -> Tensor:
    """Denominators with 1 in rows that see no key, where the numerator is 0."""
    return norm.masked_fill(norm == 0, 1)
