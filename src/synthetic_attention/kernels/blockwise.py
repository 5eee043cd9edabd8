"""softmax(any sum of forms) · V, some examples and rows at a time, computed again in the backward.

Memory stays linear in length: of (B, H, T, S) only one block of a few MB exists, and the backward keeps the factors,
the output and nothing else. Where a block is one example, nothing is copied: heads are a batch of strided matrices,
as the projections wrote them, and the output and the gradients are laid out as the projections read them.

`factors.py` has the blocks, `gradients.py` what the backward adds up.

Shape legend: B batch, H heads, T queries, S keys, D width of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..logits import FactoredLogits
from .block import refuse_second_derivative
from .factors import Factors, matrices, write
from .gradients import Gradients

__all__ = ["blockwise_attention"]


def blockwise_attention(
    factored: FactoredLogits,
    value: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool,
    query_offset: int,
    dropout_p: float,
) -> Tensor:
    """softmax(logits) · value; arguments as in `attend`, the logits as factors.

    Returns:
        (B, H, T, D), a view of a contiguous (B, T, H, D).
    """
    queries = [
        (term.query if term.scale == 1.0 else term.query * term.scale).to(value.dtype) for term in factored.inner
    ]
    keys = [term.key.to(value.dtype) for term in factored.inner]
    tiled = [term.tiled.to(value.dtype) for term in factored.outer]
    repeated = [term.repeated.to(value.dtype) for term in factored.outer]
    seed = torch.randint(2**62, (1,)) if dropout_p > 0 else None
    bias, offset = factored.bias, query_offset if is_causal else None
    terms = (factored.shared, factored.shared_weight, bias, queries, keys, tiled, repeated)
    return _forward(value, *terms, attention_mask, offset, dropout_p, seed).transpose(1, 2)


def _keep(like: Tensor, dropout_p: float, seed: Tensor | None, block: int) -> Tensor | None:
    """Dropout factors of a block, the same in forward and backward."""
    if seed is None:
        return None
    generator = torch.Generator(like.device).manual_seed(int(seed) + block)
    keep = torch.empty_like(like).bernoulli_(1 - dropout_p, generator=generator)
    return keep.div_(1 - dropout_p) if dropout_p < 1 else keep


@torch.library.custom_op("synthetic_attention::blockwise_forward", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _forward(
    value: Tensor,
    shared: Tensor | None,
    shared_weight: Tensor | None,
    bias: Tensor | None,
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    tiled: Sequence[Tensor],
    repeated: Sequence[Tensor],
    mask: Tensor | None,
    offset: int | None,
    dropout_p: float,
    seed: Tensor | None,
) -> Tensor:
    """The output, (B, T, H, D)."""
    factors = Factors(value, shared, shared_weight, bias, queries, keys, tiled, repeated, mask, offset)
    out = _empty(factors, value)
    with torch.autocast(value.device.type, enabled=False):
        for i, block in enumerate(factors.blocks()):
            weights = block.weights()
            keep = _keep(weights, dropout_p, seed, i)
            weights = (weights if keep is None else weights.mul_(keep)).to(value.dtype)
            write(out, block, weights, matrices(value[block.b, block.h, : block.columns]))
    return out


def _empty(factors: Factors, value: Tensor) -> Tensor:
    return value.new_empty(value.shape[0], factors.rows, value.shape[1], value.shape[3])


@_forward.register_fake
def _forward_fake(value: Tensor, *others: Any) -> Tensor:
    *terms, _dropout_p, _seed = others
    return _empty(Factors(value, *terms), value)


@torch.library.custom_op("synthetic_attention::blockwise_backward", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _backward(
    grad: Tensor,
    value: Tensor,
    shared: Tensor | None,
    shared_weight: Tensor | None,
    bias: Tensor | None,
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    tiled: Sequence[Tensor],
    repeated: Sequence[Tensor],
    mask: Tensor | None,
    offset: int | None,
    dropout_p: float,
    seed: Tensor | None,
    train_shared: bool,
) -> list[Tensor]:
    """Gradients of value, then of those of shared and bias that there are, then of the others in their order.

    Without `train_shared` that of shared is left out.
    """
    factors = Factors(value, shared, shared_weight, bias, queries, keys, tiled, repeated, mask, offset)
    grads = Gradients.zeros(factors, train_shared or shared_weight is not None)
    with torch.autocast(value.device.type, enabled=False):
        for i, block in enumerate(factors.blocks()):
            weights = block.weights()
            keep = _keep(weights, dropout_p, seed, i)
            g = matrices(grad[block.b, block.t, block.h].transpose(1, 2))
            own = matrices(value[block.b, block.h, : block.columns])
            kept = weights if keep is None else weights * keep
            grads.add_to(grads.value, block, block.columns, kept.to(value.dtype).mT, g)
            grad_weights = torch.bmm(g, own.mT).to(weights.dtype)
            if keep is not None:
                grad_weights *= keep
            # In place: it reads each row before it writes it.
            torch.ops.aten._softmax_backward_data.out(grad_weights, weights, -1, weights.dtype, grad_input=grad_weights)
            grads.add_scores(block, grad_weights)
    grads.weigh_shared(factors, train_shared)
    return grads.as_inputs(factors)


@_backward.register_fake
def _backward_fake(grad: Tensor, *others: Any) -> list[Tensor]:
    *terms, _dropout_p, _seed, train_shared = others
    factors = Factors(*terms)
    return Gradients.zeros(factors, train_shared).as_inputs(factors)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    value, shared, shared_weight, bias, queries, keys, tiled, repeated, mask, ctx.offset, ctx.dropout_p, seed = inputs
    ctx.counts = [len(queries), len(keys), len(tiled), len(repeated)]
    ctx.save_for_backward(value, shared, shared_weight, bias, mask, seed, *queries, *keys, *tiled, *repeated)


def _autograd(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
    value, shared, shared_weight, bias, mask, seed, *rest = ctx.saved_tensors
    saved = iter(rest)
    lists = [[next(saved) for _ in range(count)] for count in ctx.counts]
    train_shared = ctx.needs_input_grad[1]
    terms = (value, shared, shared_weight, bias, *lists)
    found = iter(_backward(grad, *terms, mask, ctx.offset, ctx.dropout_p, seed, train_shared))
    wanted = (value, shared if train_shared else None, shared_weight, bias)
    single = [None if x is None else next(found) for x in wanted]
    grads = [[next(found) for _ in range(count)] for count in ctx.counts]
    return *single, *grads, None, None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)
_backward.register_autograd(refuse_second_derivative)
