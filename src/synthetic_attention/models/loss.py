"""Output projection and label-smoothed cross-entropy in one: the (tokens, vocabulary) logits are never stored.

The loss of a token with hidden state h, label y and smoothing ε over V pieces, z = W h:

    loss = logsumexp(z) − (1 − ε) z_y − ε/V Σ z        ∂loss/∂z = softmax(z) − (1 − ε) e_y − ε/V

Rows go through in chunks whose logits stay in the cache; the gradients are taken on the way, while they are there.
The terms in ε/V need no logits: Σ_v z_v = h · Σ_v W_v.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..transforms import is_traced

__all__ = ["IGNORED", "cross_entropy", "linear_cross_entropy", "linear_token_losses", "token_losses"]

IGNORED = -100
# Sums of exponentials between these came of logits that float32 can take as they are, with room for their products.
_SMALLEST_SUM, _LARGEST_SUM = 1e-15, 1e25


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """The sum of the losses of all tokens, in float32 or wider. The slow twin of `linear_cross_entropy`.

    Args:
        logits: (…, V).
        labels: (…), −100 where there is nothing to learn.
        label_smoothing: ε.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
    return F.cross_entropy(
        flat, labels.reshape(-1), ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing
    )


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each token by itself, 0 where the label is −100. The slow twin of `linear_token_losses`.

    Args:
        logits: (…, V).
        labels: (…).

    Returns:
        The shape of labels, in float32 or wider.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
    return F.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED, reduction="none").view_as(labels)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """`cross_entropy(hidden @ weight.T, labels)` without its logits; tokens without a label cost nothing.

    Args:
        hidden: (…, D).
        weight: (V, D).
        labels: (…), −100 where there is nothing to learn.
        label_smoothing: ε.

    Returns:
        The sum of the losses, a scalar in float32 or wider.
    """
    # Which rows have a label is data, on which compiled code cannot branch; and its compiler fuses by itself.
    if is_traced():
        return cross_entropy(F.linear(hidden, weight), labels, label_smoothing)
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    rows = hidden.reshape(-1, hidden.shape[-1])
    loss: Tensor = _LinearCrossEntropy.apply(rows, weight, labels.reshape(-1), label_smoothing)
    return loss


@torch.no_grad()
def linear_token_losses(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The loss of each token by itself, without storing all logits and without gradients.

    Args:
        hidden: (…, D).
        weight: (V, D).
        labels: (…), −100 where the loss is to be 0.

    Returns:
        The shape of labels, in float32 or wider.
    """
    x, y = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    losses = torch.zeros_like(y, dtype=torch.promote_types(x.dtype, torch.float32))
    for chunk in _chunks(x):
        _, total, shift, picked = _exponentials(x[chunk], weight, y[chunk].clamp_min(0))
        losses[chunk] = (total.log() + shift - picked).squeeze(1)
    return losses.masked_fill_(y == IGNORED, 0).view_as(labels)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            loss, *gradients = _forward(hidden, weight, labels, smoothing, ctx.needs_input_grad[:2])
        ctx.save_for_backward(*gradients)
        ctx.dtype = weight.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if g is None else (g * upstream.to(g.dtype)).to(ctx.dtype) for g in ctx.saved_tensors)
        return (*scaled, None, None)


def _forward(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, needs_grad: tuple[bool, ...]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The summed loss and its gradients, each None where it is not needed."""
    kept = (labels != IGNORED).nonzero().squeeze(1)
    every = len(kept) == len(labels)
    x = hidden if every else hidden.index_select(0, kept)
    y = labels if every else labels.index_select(0, kept)
    accumulate = torch.promote_types(hidden.dtype, torch.float32)
    summed = weight.sum(0, dtype=accumulate) if smoothing else None
    dx = torch.empty_like(x) if needs_grad[0] else None
    dw = torch.zeros_like(weight, dtype=accumulate) if needs_grad[1] else None
    loss = hidden.new_zeros((), dtype=accumulate)
    for chunk in _chunks(x):
        loss += _chunk(x[chunk], weight, y[chunk], smoothing, dw, None if dx is None else dx[chunk])
    if summed is not None:
        per_piece = smoothing / len(weight)
        total = x.sum(0, dtype=accumulate)
        loss -= per_piece * (total @ summed)
        if dx is not None:
            dx -= (per_piece * summed).to(dx.dtype)
        if dw is not None:
            dw -= per_piece * total
    if dx is not None and not every:
        dx = torch.zeros_like(hidden).index_copy_(0, kept, dx)
    # A sum over all tokens may be too large for float16 until it is divided by their number.
    if dw is not None and weight.dtype != torch.float16:
        dw = dw.to(weight.dtype)
    return loss, dx, dw


def _chunks(x: Tensor) -> list[slice]:
    # On a CPU the logits should stay in the cache, and the products be large; enough rows to fill a GPU.
    rows = 512 if x.device.type == "cpu" else 2048
    return [slice(start, start + rows) for start in range(0, len(x), rows)]


def _exponentials(x: Tensor, weight: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | float, Tensor]:
    """exp(z − c) of the logits z of some rows, its sum, c, and z_y: (rows, V), (rows, 1), (rows, 1) or 0, (rows, 1)."""
    logits = _logits(x, weight)
    picked = logits.gather(1, y.unsqueeze(1))
    # Step by step in place: on a CPU much faster than log_softmax and exp.
    if x.device.type == "cpu":
        # Without the search for the largest logit, as long as the sums show that nothing over- or underflowed.
        exponential = logits.exp_()
        total = exponential.sum(dim=-1, keepdim=True)
        if bool(((total > _SMALLEST_SUM) & (total < _LARGEST_SUM)).all()):
            return exponential, total, 0.0, picked
        logits = _logits(x, weight)
    highest = logits.amax(dim=-1, keepdim=True)
    exponential = logits.sub_(highest).exp_()
    return exponential, exponential.sum(dim=-1, keepdim=True), highest, picked


def _logits(x: Tensor, weight: Tensor) -> Tensor:
    logits = x @ weight.t()
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _chunk(x: Tensor, weight: Tensor, y: Tensor, smoothing: float, dw: Tensor | None, dx: Tensor | None) -> Tensor:
    """Loss of some rows without its terms in ε/V; writes their gradient to dx and adds the weight's to dw."""
    exponential, total, shift, picked = _exponentials(x, weight, y)
    loss = (total.log() + shift - (1 - smoothing) * picked).sum()
    if dw is None and dx is None:
        return loss
    exponential.scatter_add_(1, y.unsqueeze(1), total * (smoothing - 1))
    inverse = total.reciprocal()
    if x.dtype == exponential.dtype:
        # The gradient is this over the sum of its row, by which the narrow factors and products are cheaper to divide.
        if dx is not None:
            torch.mm(exponential, weight, out=dx).mul_(inverse)
        if dw is not None:
            dw.addmm_(exponential.t(), x * inverse)
        return loss
    gradient = exponential.mul_(inverse).to(x.dtype)
    if dx is not None:
        torch.mm(gradient, weight, out=dx)
    if dw is not None:
        # The products in the dtype of the hidden states, their sum over chunks in float32.
        dw += gradient.t() @ x
    return loss
