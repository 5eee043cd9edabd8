"""softmax(R) · V on an accelerator, where all examples share R: matrix products over all heads and examples at once.

The equations are those of `shared.py`, which is made for the caches of a CPU. Here R is small beside the activations,
so P = softmax(R) is computed whole, in the dtype of R, and each product is one call for all heads. Causal rows are
computed in a few bands, each up to its last key. Nothing is read back from the device.

Under a key mask m of an example, Y = P (m ∘ V) / P m: the same P serves all examples. If a mask hides so much of a row
that P m vanishes, the Triton kernels compute all rows again, with a softmax per example; a flag on the device starts
them.

Shape legend: B batch, H heads, T queries, S keys, D width of a value, N = D·B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .blocks import has_triton, hide_later, refuse_second_derivative, slices, wide, without_autocast
from .shared import nonzero

if TYPE_CHECKING:
    from .triton_attention import Call

# Rows of a causal band: products of fewer rows do not fill a device.
_BAND_ROWS, _MOST_BANDS = 256, 8
# Below this sum of P a row is computed again: float32 and bfloat16 end at 1e-38.
_LEAST_SUM = 1e-30
_WIDEST_AGAIN = 128


def batched_attention(
    scores: Tensor,
    value: Tensor,
    mask: Tensor | None,
    offset: int | None,
    dropout: Tensor | None,
    value_is_masked: bool = False,
    is_finite: bool = False,
) -> Tensor:
    """softmax(scores) · value, of scores (H, T, S), as in `attend`; row t sees keys ≤ offset + t, or all.

    Args:
        value: (B, H, S, D); fastest as a view of a contiguous (H, D, B, S).
        dropout: (H, T, S), factors 0 or 1/(1−p) on the weights, one mask for the whole batch; or None.
        is_finite: no score is −inf, which spares three passes over the scores.

    Returns:
        (B, H, T, D), a view of a contiguous (H, D, B, T).
    """
    if mask is not None and value.dtype == torch.float16:
        # P m may be as small as exp(−range of R), and float16 ends at exp(−17).
        out = batched_attention(scores.float(), value.float(), mask, offset, dropout, value_is_masked, is_finite)
        return out.to(value.dtype)
    by_feature = value.permute(1, 3, 0, 2)
    out_HDBT, *_ = _forward(scores, by_feature, mask, offset, dropout, value_is_masked, is_finite)
    return out_HDBT.permute(2, 0, 3, 1)


def _bands(rows: int, columns: int, offset: int | None) -> Iterator[tuple[slice, int]]:
    """Bands of rows, and how many keys they see."""
    if offset is None or offset >= columns - 1:
        yield slice(0, rows), columns
        return
    for t in slices(rows, max(_BAND_ROWS, -(-rows // _MOST_BANDS))):
        yield t, min(columns, offset + t.stop)


def _softmax(scores: Tensor, offset: int | None, is_finite: bool) -> Tensor:
    """P (H, T, S). Causal bands are defined up to their last key only."""
    rows, columns = scores.shape[1:]
    if offset is None or offset >= columns - 1:
        return _plain_softmax(scores, is_finite)
    weights = scores.new_empty(scores.shape)
    for t, last in _bands(rows, columns, offset):
        band = scores[:, t, :last]
        if offset + t.start < last - 1:
            band = hide_later(band.clone(), offset + t.start)
        weights[:, t, :last] = _plain_softmax(band, is_finite)
    return weights


def _plain_softmax(scores: Tensor, is_finite: bool) -> Tensor:
    if is_finite:
        return torch.softmax(scores, dim=-1)
    empty = scores.amax(dim=-1, keepdim=True) == -torch.inf
    return torch.softmax(scores.masked_fill(empty, 0), dim=-1).masked_fill_(empty, 0)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b, batches of matrices, added up and returned in `dtype`."""
    if a.dtype == dtype:
        return torch.bmm(a, b)
    return torch.bmm(a, b, out_dtype=dtype) if a.is_cuda else torch.bmm(a.to(dtype), b.to(dtype))


def _operator(name: str) -> Any:
    return torch.library.custom_op(f"synthetic_attention::{name}", mutates_args=())


@_operator("batched_forward")
def _forward(
    scores: Tensor,
    value: Tensor,
    mask: Tensor | None,
    offset: int | None,
    dropout: Tensor | None,
    value_is_masked: bool,
    is_finite: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output (H, D, B, T); with a mask the denominators (H, B, T); P (H, T, S) if it is kept for the backward; lse.

    lse (B, H, T) are the logarithms of the denominators of rows that were computed again, if that is possible.
    """
    out, norm, kept, lse = _results(scores, value, mask)
    given = value
    with without_autocast(value.device.type):
        weights = _softmax(scores, offset, is_finite)
        narrow = weights.to(value.dtype)
        if mask is not None and not value_is_masked:
            value = value * mask.to(value.dtype)
        for t, last in _bands(scores.shape[1], scores.shape[2], offset):
            band = narrow[:, t, :last].mT
            if mask is not None:
                mask_HBS = mask[:, :last].to(band.dtype).expand(len(band), -1, -1)
                norm[:, :, t] = _product(mask_HBS, band, norm.dtype)
            if dropout is not None:
                band = band * dropout[:, t, :last].mT.to(band.dtype)
            torch.bmm(value.flatten(1, 2)[:, :, :last], band, out=out.flatten(1, 2)[:, :, t])
        if mask is not None:
            out /= nonzero(norm)[:, None]
            if lse.numel():
                _again(scores, given, mask, offset, dropout, norm).forward(out.permute(2, 0, 3, 1), lse)
    return out, norm, weights if kept.numel() else kept, lse


def allows_any_mask(value: Tensor) -> bool:
    """Whether rows whose weights vanish under a mask are computed again, or do not vanish: float64 ends at 1e-308."""
    return value.dtype == torch.float64 or _can_compute_again(value.shape[-1], value)


def _can_compute_again(width: int, value: Tensor) -> bool:
    return has_triton(value) and value.dtype != torch.float64 and width <= _WIDEST_AGAIN


def _again(
    scores: Tensor, value: Tensor, mask: Tensor, offset: int | None, dropout: Tensor | None, norm: Tensor
) -> Call:
    """The Triton kernels for these arguments, which run if a row sees keys and the sum of their P vanishes."""
    from .triton_attention import Call

    seen = mask.any(dim=1, keepdim=True) if offset is None else mask.cumsum(dim=1) > 0
    if offset is not None:
        last = torch.arange(offset, offset + norm.shape[-1], device=mask.device).clamp_(max=mask.shape[1] - 1)
        seen = seen[:, last]
    flag = ((norm < _LEAST_SUM) & seen).any().to(torch.int32)
    scores = scores if scores.stride(-1) == 1 else scores.contiguous()
    kept = None if dropout is None else dropout.contiguous()
    by_example = value.permute(2, 0, 3, 1)
    return Call(by_example, shared=scores, mask=mask.contiguous(), offset=offset, kept=kept, flag=flag)


def _results(scores: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads, width, batch, _ = value.shape
    rows = scores.shape[1]
    norm = scores.new_empty(heads, 0 if mask is None else batch, rows, dtype=wide(scores))
    # P is kept where it is smaller than the values, else it is computed again.
    kept = scores.new_empty(scores.shape if scores.numel() <= value.numel() else (0,))
    again = mask is not None and _can_compute_again(width, value)
    lse = value.new_empty((batch, heads, rows) if again else (0,), dtype=torch.float32)
    return value.new_empty(heads, width, batch, rows), norm, kept, lse


@_forward.register_fake
def _forward_fake(scores: Tensor, value: Tensor, mask: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _results(scores, value, mask)


@_operator("batched_backward")
def _backward(
    grad: Tensor,
    scores: Tensor,
    value: Tensor,
    weights: Tensor,
    out: Tensor | None,
    norm: Tensor | None,
    lse: Tensor,
    mask: Tensor | None,
    offset: int | None,
    dropout: Tensor | None,
    value_is_masked: bool,
    is_finite: bool,
    train_scores: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of scores (H, T, S), empty unless `train_scores`, and of value (H, D, B, S)."""
    rows, columns = scores.shape[1:]
    given, given_grad = value, grad
    grad_scores, grad_value = _gradients(scores, value, train_scores)
    with without_autocast(value.device.type):
        weights = weights if weights.numel() else _softmax(scores, offset, is_finite)
        inner = None
        if mask is not None:
            assert norm is not None
            assert out is not None
            grad = (grad / nonzero(norm)[:, None]).to(value.dtype)
            # Σ g′ · Y of each row and example.
            inner = (grad * out).sum(dim=1, dtype=wide(value))
            value = value if value_is_masked else value * mask.to(value.dtype)
        narrow = weights.to(value.dtype)
        if dropout is not None:
            narrow = narrow * dropout.to(narrow.dtype)
        value_HNS, grad_HNT, sum_HNS = value.flatten(1, 2), grad.flatten(1, 2), grad_value.flatten(1, 2)
        seen = 0
        for t, last in _bands(rows, columns, offset):
            # The keys that this band of rows is the first to see: no sum over bands, which would round.
            torch.bmm(grad_HNT[:, :, t.start :], narrow[:, t.start :, seen:last], out=sum_HNS[:, :, seen:last])
            seen = last
        sum_HNS[:, :, seen:] = 0
        if mask is not None and not value_is_masked:
            grad_value *= mask.to(grad_value.dtype)
        for t, last in _bands(rows, columns, offset) if train_scores else ():
            band = weights[:, t, :last]
            dtype = band.dtype if inner is None else wide(band)
            grad_band = _product(grad_HNT[:, :, t].mT, value_HNS[:, :, :last], dtype)
            if dropout is not None:
                grad_band *= dropout[:, t, :last].to(dtype)
            if inner is None or mask is None:
                grad_band = torch._softmax_backward_data(grad_band, band, -1, scores.dtype)
            else:
                mask_HBS = mask[:, :last].to(dtype).expand(len(band), -1, -1)
                grad_band = grad_band.baddbmm_(inner[:, :, t].mT.to(dtype), mask_HBS, alpha=-1).mul_(band)
            if grad_band.shape == scores.shape and grad_band.dtype == scores.dtype:
                grad_scores = grad_band
                break
            grad_scores[:, t, :last] = grad_band
            grad_scores[:, t, last:] = 0
        if lse.numel():
            assert mask is not None
            assert out is not None
            assert norm is not None
            call = _again(scores, given, mask, offset, dropout, norm)
            grad, out, into = (x.permute(2, 0, 3, 1) for x in (given_grad, out, grad_value))
            call.backward(grad, out, lse, type(call)(into, shared=grad_scores[None] if train_scores else None))
    return grad_scores, grad_value


def _gradients(scores: Tensor, value: Tensor, train_scores: bool) -> tuple[Tensor, Tensor]:
    shape = scores.shape if train_scores else (0,)
    return scores.new_empty(shape), torch.empty_like(value, memory_format=torch.contiguous_format)


@_backward.register_fake
def _backward_fake(grad: Tensor, scores: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _gradients(scores, value, others[-1])


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    scores, value, mask, ctx.offset, dropout, ctx.value_is_masked, ctx.is_finite = inputs
    out, norm, weights, lse = output
    ctx.mark_non_differentiable(norm, weights, lse)
    ctx.save_for_backward(scores, value, weights, *((None, None) if mask is None else (out, norm)), lse, mask, dropout)


def _autograd(ctx, grad: Tensor, *_: Tensor | None):  # type: ignore[no-untyped-def]
    scores, value, weights, out, norm, lse, mask, dropout = ctx.saved_tensors
    train = ctx.needs_input_grad[0]
    grad_scores, grad_value = _backward(
        *(grad, scores, value, weights, out, norm, lse, mask, ctx.offset, dropout),
        *(ctx.value_is_masked, ctx.is_finite, train),
    )
    return grad_scores if train else None, grad_value, None, None, None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)
_backward.register_autograd(refuse_second_derivative)
