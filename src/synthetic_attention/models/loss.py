"""Output projection and label-smoothed cross-entropy in one, without storing the (tokens, vocabulary) logits.

The loss of a token with hidden state h, label y and smoothing ε over a vocabulary of V tokens, z = W h:

    loss = logsumexp(z) − (1 − ε) z_y − ε/V Σ z        ∂loss/∂z = softmax(z) − (1 − ε) e_y − ε/V

Rows are processed in chunks whose logits fit the processor's cache; their gradients are computed right away.
The terms in ε/V need no logits: Σ_v z_v = h · Σ_v W_v.
(`F.linear_cross_entropy` of torch 2.13 stores all logits where there is label smoothing.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..kernels.matmul import add_product, product, write_product
from ..layout import is_traced

# The label of tokens that are not scored, as everywhere in PyTorch and Hugging Face.
IGNORED = -100
# Sums of exponentials in this range come from logits that float32 can represent, with room for their products.
_SMALLEST_SUM, _LARGEST_SUM = 1e-15, 1e25


def check_labels(labels: Tensor, shape: torch.Size) -> None:
    """Raise ValueError unless there is one label for each token of a batch of this shape."""
    if labels.shape != shape:
        raise ValueError(f"got labels of shape {tuple(labels.shape)}; expected one per token, {tuple(shape)}")


def mean_loss(total: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """The sum of the losses divided by the number of items, by default of the labels; 0 if there is none."""
    return total / ((labels != IGNORED).sum().clamp_min(1) if num_items_in_batch is None else num_items_in_batch)


@torch.no_grad()
def head_token_losses(head: nn.Module, hidden: Tensor, labels: Tensor) -> Tensor:
    """The loss of each token, 0 where the label is −100, without gradients and without storing all logits.

    Hidden states (…, D) and labels (…) to (…), in float32 or wider.
    """
    x, y = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    losses = [cross_entropy(head(x[rows]), y[rows], reduction="none") for rows in _chunks(x) or [slice(0)]]
    return torch.cat(losses).view_as(labels)


def scored_rows(labels: Tensor) -> Tensor | None:
    """Which of the flattened labels are scored; None in code that must not read them.

    This waits for the device: before the layers, where a mask is read too, that costs less than after them.
    """
    return None if is_traced() else (labels.flatten() != IGNORED).nonzero().squeeze(1)


def up_to_last_scored(labels: Tensor) -> Tensor:
    """(B, T) bool: the tokens of a decoder up to the last one of each row with a label, as no later one is looked at.

    At least one token stays, so that parameters have gradients where no label is scored.
    """
    needed = (labels != IGNORED).flip(1).cummax(1).values.flip(1)
    needed[:1, :1] = True
    return needed


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0, reduction: str = "sum") -> Tensor:
    """The loss of logits (…, V) in float32 or wider: the reference of `linear_cross_entropy`.

    The sum of all tokens with a label, or with reduction "none" the losses (…), 0 where the label is −100.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
    options: dict[str, Any] = {"ignore_index": IGNORED, "reduction": reduction, "label_smoothing": smoothing}
    loss = F.cross_entropy(flat, labels.reshape(-1).to(flat.device, torch.long), **options)
    return loss if reduction == "sum" else loss.view_as(labels)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    bias: Tensor | None = None,
    scored: Tensor | None = None,
) -> Tensor:
    """`cross_entropy(F.linear(hidden, weight, bias), labels)` without storing the logits, of tokens that have a label.

    Takes hidden states (…, D), weight (V, D), bias (V,), labels (…), and `scored_rows(labels)` if they are known;
    returns the sum of the losses in float32 or wider.
    """
    scored = scored_rows(labels) if scored is None else scored
    # Compiled code cannot branch on which rows have a label, and its compiler fuses by itself.
    if scored is None:
        return cross_entropy(F.linear(hidden, weight, bias), labels, smoothing)
    if bias is not None:
        # One more column of the weight, with a hidden state of 1.
        hidden, weight = F.pad(hidden, (0, 1), value=1.0), torch.cat((weight, bias[:, None]), dim=1)
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    rows = hidden.reshape(-1, hidden.shape[-1])
    with torch.autocast(device, enabled=False):
        loss: Tensor = _LinearCrossEntropy.apply(rows, weight, labels.reshape(-1).long(), scored, smoothing)
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, scored: Tensor, smoothing: float) -> Tensor:
        all_scored = len(scored) == len(labels)
        x = hidden if all_scored else hidden.index_select(0, scored)
        y = labels if all_scored else labels.index_select(0, scored)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        dw = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        loss = hidden.new_zeros((), dtype=wide)
        for chunk in _chunks(x):
            loss += _chunk(x[chunk], weight, y[chunk], smoothing, dw, None if dx is None else dx[chunk])
        if smoothing:
            per_token, total, summed = smoothing / len(weight), x.sum(0, dtype=wide), weight.sum(0, dtype=wide)
            loss -= per_token * (total @ summed)
            if dx is not None:
                dx -= (per_token * summed).to(dx.dtype)
            if dw is not None:
                dw -= per_token * total
        if dx is not None and not all_scored:
            dx = torch.zeros_like(hidden).index_copy_(0, scored, dx)
        # In float16 the sum over all tokens may overflow before it is divided by their number.
        if dw is not None and weight.dtype != torch.float16:
            dw = dw.to(weight.dtype)
        ctx.save_for_backward(dx, dw)
        ctx.dtype = weight.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if g is None else (g * upstream.to(g.dtype)).to(ctx.dtype) for g in ctx.saved_tensors)
        return (*scaled, None, None, None)


def _chunks(x: Tensor) -> list[slice]:
    # On a CPU: few enough for the logits to stay in the cache; on a GPU: enough rows to fill it.
    rows = 512 if x.device.type == "cpu" else 2048
    return [slice(start, start + rows) for start in range(0, len(x), rows)]


def _exponentials(x: Tensor, weight: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | float, Tensor]:
    """exp(z − c) of the logits z of some rows, its sum, c, and z_y: (rows, V), (rows, 1), (rows, 1) or 0, (rows, 1)."""
    logits = _logits(x, weight)
    picked = logits.gather(1, y.unsqueeze(1))
    # In-place steps are much faster on a CPU than log_softmax and exp.
    if x.device.type == "cpu":
        # Skip the maximum as long as the sums show that nothing over- or underflowed.
        exponential = logits.exp_()
        total = exponential.sum(dim=-1, keepdim=True)
        if bool(((total > _SMALLEST_SUM) & (total < _LARGEST_SUM)).all()):
            return exponential, total, 0.0, picked
        logits = _logits(x, weight)
    highest = logits.amax(dim=-1, keepdim=True)
    exponential = logits.sub_(highest).exp_()
    return exponential, exponential.sum(dim=-1, keepdim=True), highest, picked


def _logits(x: Tensor, weight: Tensor) -> Tensor:
    logits = product(x, weight.t())
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _chunk(x: Tensor, weight: Tensor, y: Tensor, smoothing: float, dw: Tensor | None, dx: Tensor | None) -> Tensor:
    """The loss of some rows without its terms in ε/V. Writes their gradient to dx and adds the weight's to dw."""
    exponential, total, shift, picked = _exponentials(x, weight, y)
    loss = (total.log() + shift - (1 - smoothing) * picked).sum()
    if dw is None and dx is None:
        return loss
    exponential.scatter_add_(1, y.unsqueeze(1), total * (smoothing - 1))
    inverse = total.reciprocal()
    if x.dtype == exponential.dtype:
        # The gradient is this divided by the sum of its row. Dividing the narrow factors and products is cheaper.
        if dx is not None:
            write_product(exponential[None], weight[None], dx[None])
            dx.mul_(inverse)
        if dw is not None:
            add_product(dw[None], exponential.t()[None], (x * inverse)[None])
        return loss
    gradient = exponential.mul_(inverse).to(x.dtype)
    if dx is not None:
        torch.mm(gradient, weight, out=dx)
    if dw is not None:
        # Products in the dtype of the hidden states, their sum over chunks in float32.
        dw += gradient.t() @ x
    return loss
