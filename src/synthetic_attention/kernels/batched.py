"""softmax(R) · V on an accelerator, where all examples share R: matrix products over all heads and examples at once.

The equations are those of `shared.py`, which is made for the caches of a CPU. R is small compared to activations here,
so P = softmax(R) is computed whole, in the dtype of R, and each product is one call for all heads. Causal rows are
computed in a few bands, each up to its last key. Nothing is read back from the device.

Under a key mask m of an example, Y = P (m ∘ V) / P m: the same P serves all examples. If a mask hides so much of a row
that P m vanishes, the Triton kernels compute all rows again, with a softmax per example; a flag on the device starts
them. Where they do not run, the flag is read back.

Shape legend: B batch, H heads, T queries, S keys, D width of a value, N = D·B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .blocks import block_softmax, has_triton, hide_later, operator, slices, wide
from .shared import ARGUMENTS, SharedCall, by_feature, has_small_range, nonzero

if TYPE_CHECKING:
    from .triton_attention import Call

# Rows of a causal band: products of fewer rows do not fill a device.
_BAND_ROWS, _MOST_BANDS = 256, 8
# Below this sum of P a row is computed again: float32 and bfloat16 end at 1e-38.
_LEAST_SUM, _WIDEST_AGAIN = 1e-30, 128


@dataclass
class BatchedCall(SharedCall):
    """softmax(scores) · value in a few products over all heads and examples. `is_finite`: no score is −inf."""

    is_finite: bool

    def empty_outputs(self) -> tuple[Tensor, ...]:
        """Output (H, D, B, T); with a mask the denominators (H, B, T); P (H, T, S) if it is kept for the backward; lse.

        lse (B, H, T) are the logarithms of the denominators of rows that were computed again, if that is possible.
        """
        out, norm = super().empty_outputs()
        heads, width, batch, rows = out.shape
        # P is kept where it is smaller than the values, else it is computed again.
        kept = self.scores.new_empty(self.scores.shape if self.scores.numel() <= self.value.numel() else (0,))
        again = self.mask is not None and _can_compute_again(width, self.value)
        lse = self.value.new_empty((batch, heads, rows) if again else (0,), dtype=torch.float32)
        return out, norm, kept, lse

    def forward(self) -> tuple[Tensor, ...]:
        out, norm, kept, lse = self.empty_outputs()
        weights, value = self._softmax(), self.value
        narrow = weights.to(value.dtype)
        for t, last in self._bands():
            band = narrow[:, t, :last].mT
            if self.mask is not None:
                norm[:, :, t] = _product(self._mask_per_head(last, band.dtype), band, norm.dtype)
            if self.dropout is not None:
                band = band * self.dropout[:, t, :last].mT.to(band.dtype)
            torch.bmm(value.flatten(1, 2)[:, :, :last], band, out=out.flatten(1, 2)[:, :, t])
        if self.mask is not None:
            out /= nonzero(norm)[:, None]
        if lse.numel():
            again = self._again(norm)
            if not again.launch_forward(out.permute(2, 0, 3, 1), lse) and bool(again.flag):
                again.write(out.permute(2, 3, 0, 1))
        return out, norm, weights if kept.numel() else kept, lse

    def backward(self, grad: Tensor, saved: Sequence[Any], needs: Sequence[bool]) -> list[Tensor | None]:
        out, norm, weights, lse = saved
        weights, value, given = weights if weights.numel() else self._softmax(), self.value, grad
        grad_value, inner = self.value.new_empty(self.value.shape), None
        if norm is not None:
            grad = (grad / nonzero(norm)[:, None]).to(value.dtype)
            # Σ g′ · Y of each row and example.
            inner = (grad * out).sum(dim=1, dtype=wide(value))
        narrow = weights.to(value.dtype)
        if self.dropout is not None:
            narrow = narrow * self.dropout.to(narrow.dtype)
        grad_HNT, sum_HNS = grad.flatten(1, 2), grad_value.flatten(1, 2)
        seen = 0
        for t, last in self._bands():
            # The keys that this band of rows is the first to see: no sum over bands, which would round.
            torch.bmm(grad_HNT[:, :, t.start :], narrow[:, t.start :, seen:last], out=sum_HNS[:, :, seen:last])
            seen = last
        sum_HNS[:, :, seen:] = 0
        grad_scores = self._gradient_of_scores(grad_HNT, value.flatten(1, 2), weights, inner) if needs[0] else None
        if lse.numel():
            again, scores = self._again(norm), None if grad_scores is None else grad_scores[None]
            by_example, *others = (x.permute(2, 0, 3, 1) for x in (grad_value, given, out))
            into = type(again)(by_example, shared=scores)
            if not again.launch_backward(*others, lse, into) and bool(again.flag):
                return self.gradients_by_blocks(given, needs)
        return [grad_scores, grad_value]

    def _gradient_of_scores(self, grad_HNT: Tensor, value_HNS: Tensor, weights: Tensor, inner: Tensor | None) -> Tensor:
        total = self.scores.new_empty(self.scores.shape)
        for t, last in self._bands():
            band = weights[:, t, :last]
            dtype = band.dtype if inner is None else wide(band)
            grad_band = _product(grad_HNT[:, :, t].mT, value_HNS[:, :, :last], dtype)
            if self.dropout is not None:
                grad_band *= self.dropout[:, t, :last].to(dtype)
            if inner is None:
                grad_band = torch._softmax_backward_data(grad_band, band, -1, self.scores.dtype)
            else:
                mask_HBS = self._mask_per_head(last, dtype)
                grad_band = grad_band.baddbmm_(inner[:, :, t].mT.to(dtype), mask_HBS, alpha=-1).mul_(band)
            if grad_band.shape == total.shape and grad_band.dtype == total.dtype:
                return grad_band
            total[:, t, :last] = grad_band
            total[:, t, last:] = 0
        return total

    def _bands(self) -> Iterator[tuple[slice, int]]:
        """Bands of rows, and how many keys they see."""
        rows, columns = self.scores.shape[1:]
        if self.offset is None or self.offset >= columns - 1:
            yield slice(0, rows), columns
            return
        for t in slices(rows, max(_BAND_ROWS, -(-rows // _MOST_BANDS))):
            yield t, min(columns, self.offset + t.stop)

    def _softmax(self) -> Tensor:
        """P (H, T, S). Causal bands are defined up to their last key only."""
        weights = None
        for t, last in self._bands():
            band = hide_later(self.scores[:, t, :last], self.offset, t.start, in_place=False)
            band = torch.softmax(band, dim=-1) if self.is_finite else block_softmax(band)
            if band.shape == self.scores.shape:
                return band
            weights = self.scores.new_empty(self.scores.shape) if weights is None else weights
            weights[:, t, :last] = band
        assert weights is not None
        return weights

    def _mask_per_head(self, columns: int, dtype: torch.dtype) -> Tensor:
        """(H, B, columns)."""
        assert self.mask is not None
        return self.mask[:, :columns].to(dtype).expand(len(self.scores), -1, -1)

    def _again(self, norm: Tensor) -> Call:
        """The Triton kernels for these arguments, which run if a row sees keys and the sum of their P vanishes."""
        from .triton_attention import Call

        mask, scores, dropout = self.mask, self.scores, self.dropout
        assert mask is not None
        last = torch.arange(norm.shape[-1], device=mask.device) + (
            mask.shape[1] if self.offset is None else self.offset
        )
        seen = (mask.cumsum(dim=1) > 0)[:, last.clamp_(max=mask.shape[1] - 1)]
        again = Call(**vars(self.by_blocks()), flag=((norm < _LEAST_SUM) & seen).any().to(torch.int32))
        again.shared = scores if scores.stride(-1) == 1 else scores.contiguous()
        again.mask, again.kept = mask.contiguous(), None if dropout is None else dropout.contiguous()
        return again


_forward = operator("batched", BatchedCall, f"{ARGUMENTS}, bool is_finite", 4)


def batched_attention(
    scores: Tensor,
    value: Tensor,
    mask: Tensor | None,
    offset: int | None,
    dropout: Tensor | None,
    is_finite: bool = False,
) -> Tensor:
    """`shared_attention`; `is_finite` spares three passes over the scores."""
    if mask is not None and value.dtype == torch.float16:
        # P m may be as small as exp(−range of R), and float16 ends at exp(−17).
        return batched_attention(scores.float(), value.float(), mask, offset, dropout, is_finite).to(value.dtype)
    out_HDBT, *_ = _forward(scores, by_feature(value, mask), mask, offset, dropout, is_finite)
    return out_HDBT.permute(2, 0, 3, 1)


def is_supported(scores: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether rows whose weights vanish under the mask are computed again, or cannot be (float64 ends at 1e-308)."""
    is_safe = mask is None or value.dtype == torch.float64 or _can_compute_again(value.shape[-1], value)
    return is_safe or has_small_range(scores)


def _can_compute_again(width: int, value: Tensor) -> bool:
    return has_triton(value) and value.dtype != torch.float64 and width <= _WIDEST_AGAIN


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b, batches of matrices, added up and returned in `dtype`."""
    if a.dtype == dtype:
        return torch.bmm(a, b)
    return torch.bmm(a, b, out_dtype=dtype) if a.is_cuda else torch.bmm(a.to(dtype), b.to(dtype))
