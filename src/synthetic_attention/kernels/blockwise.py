"""softmax(any sum of forms) · V, some examples and rows at a time, computed again in the backward.

Memory stays linear in length: of (B, H, T, S) only one block of a few MB exists, and the backward keeps the factors,
the output and nothing else.

Shape legend: B batch, H heads, T queries, S keys, K width of a query, D width of a value, a·b ≥ S outer factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..logits import FactoredLogits
from ..masks import allowed_keys
from .block import block_bytes, block_softmax

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
        (B, H, T, D).
    """
    query = key = bias = None
    if (inner := factored.inner) is not None:
        query = (inner.query if inner.scale == 1.0 else inner.query * inner.scale).to(value.dtype)
        key, bias = inner.key.to(value.dtype), inner.bias
    tiled = [term.tiled.to(value.dtype) for term in factored.outer]
    repeated = [term.repeated.to(value.dtype) for term in factored.outer]
    seed = torch.randint(2**62, (1,)) if dropout_p > 0 else None
    return _forward(
        value,
        factored.shared,
        query,
        key,
        bias,
        tiled,
        repeated,
        attention_mask,
        is_causal,
        query_offset,
        dropout_p,
        seed,
    )


@dataclass
class _Block:
    """The factors of some examples `b` and some rows `t`, and what is done with them.

    Matrix products want (batch · H) as one axis of contiguous matrices: torch.matmul would copy each strided operand
    itself, and transposed ones slowly.
    """

    b: slice
    t: slice
    columns: int
    value: Tensor
    shared: Tensor | None
    query: Tensor | None
    key: Tensor | None
    bias: Tensor | None
    tiled: Sequence[Tensor]
    repeated: Sequence[Tensor]
    hidden: Tensor | None

    def probabilities(self) -> Tensor:
        """softmax of the block's logits, (B, H, T, S) in float32 or higher."""
        total: Tensor | None = None
        if self.query is not None and self.key is not None:
            product = torch.bmm(self.query, self.key.mT)
            total = product.view(-1, self.value.shape[1], *product.shape[1:])
        for tiled, repeated in zip(self.tiled, self.repeated, strict=True):
            product = (repeated.unsqueeze(-1) * tiled.unsqueeze(-2)).flatten(-2)[..., : self.columns]
            total = product if total is None else total.add_(product)
        assert total is not None
        total = total.to(torch.promote_types(total.dtype, torch.float32))
        if self.bias is not None:
            total = total.add_(self.bias[:, None])
        if self.shared is not None:
            total = total.add_(self.shared)
        # Adding −inf is several times as fast as masked_fill.
        return block_softmax(total if self.hidden is None else total + self.hidden)


def _matrices(x: Tensor) -> Tensor:
    """(B, H, …) to (B · H, …), contiguous."""
    return x.flatten(0, 1).contiguous()


@dataclass
class _Factors:
    """Everything that the logits are made of; see `FactoredLogits`."""

    value: Tensor
    shared: Tensor | None
    query: Tensor | None
    key: Tensor | None
    bias: Tensor | None
    tiled: Sequence[Tensor]
    repeated: Sequence[Tensor]
    mask: Tensor | None
    is_causal: bool
    offset: int

    @property
    def rows(self) -> int:
        if self.query is not None:
            return self.query.shape[2]
        return self.tiled[0].shape[2] if self.tiled else self._shared_rows()

    def _shared_rows(self) -> int:
        assert self.shared is not None
        return self.shared.shape[-2]

    def blocks(self) -> Iterator[_Block]:
        batch, heads, columns, _ = self.value.shape
        rows, most = self.rows, block_bytes(self.value.device)
        per_row = 4 * heads * columns
        examples = max(1, most // (per_row * rows))
        step = rows if per_row * rows <= most else max(16, most // per_row)
        for b in range(0, batch, examples):
            for t in range(0, rows, step):
                yield self._block(slice(b, min(b + examples, batch)), slice(t, min(t + step, rows)))

    def _block(self, b: slice, t: slice) -> _Block:
        # Causal rows see nothing past the last of them.
        columns = self.value.shape[2]
        if self.is_causal:
            columns = min(columns, max(self.offset + t.stop, 1))
        shared, key = self.shared, self.key
        if shared is not None:
            shared = shared[b, :, t, :columns] if shared.dim() == 4 else shared[:, t, :columns]
        if key is not None:
            key = key.expand(b.stop - b.start, -1, -1, -1) if key.shape[0] == 1 else key[b]
        return _Block(
            b=b,
            t=t,
            columns=columns,
            value=self.value[b, :, :columns],
            shared=shared,
            query=None if self.query is None else _matrices(self.query[b, :, t]),
            key=None if key is None else _matrices(key[:, :, :columns]),
            bias=None if self.bias is None else self.bias[:, :columns],
            tiled=[x[b, :, t] for x in self.tiled],
            repeated=[x[b, :, t] for x in self.repeated],
            hidden=self._hidden(b, t, columns),
        )

    def _hidden(self, b: slice, t: slice, columns: int) -> Tensor | None:
        """−inf where a key is hidden and 0 elsewhere, to be added to the logits."""
        mask = None if self.mask is None else self.mask[b, :columns]
        offset, device = self.offset + t.start, self.value.device
        allowed = allowed_keys(t.stop - t.start, columns, mask, self.is_causal, offset, device)
        if allowed is None:
            return None
        zeros = torch.zeros(allowed.shape, dtype=torch.promote_types(self.value.dtype, torch.float32), device=device)
        return zeros.masked_fill_(~allowed, -torch.inf)


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
    query: Tensor | None,
    key: Tensor | None,
    bias: Tensor | None,
    tiled: Sequence[Tensor],
    repeated: Sequence[Tensor],
    mask: Tensor | None,
    is_causal: bool,
    offset: int,
    dropout_p: float,
    seed: Tensor | None,
) -> Tensor:
    factors = _Factors(value, shared, query, key, bias, tiled, repeated, mask, is_causal, offset)
    out = value.new_empty(*value.shape[:2], factors.rows, value.shape[3])
    with torch.autocast(value.device.type, enabled=False):
        for i, block in enumerate(factors.blocks()):
            weights = block.probabilities()
            keep = _keep(weights, dropout_p, seed, i)
            weights = (weights if keep is None else weights * keep).to(value.dtype)
            product = torch.bmm(weights.flatten(0, 1), _matrices(block.value))
            out[block.b, :, block.t] = product.view(-1, *out.shape[1:2], *product.shape[1:])
    return out


@_forward.register_fake
def _forward_fake(
    value: Tensor,
    shared: Tensor | None,
    query: Tensor | None,
    key: Tensor | None,
    bias: Tensor | None,
    tiled: Sequence[Tensor],
    repeated: Sequence[Tensor],
    mask: Tensor | None,
    is_causal: bool,
    offset: int,
    dropout_p: float,
    seed: Tensor | None,
) -> Tensor:
    factors = _Factors(value, shared, query, key, bias, tiled, repeated, mask, is_causal, offset)
    return value.new_empty(*value.shape[:2], factors.rows, value.shape[3])


@torch.library.custom_op("synthetic_attention::blockwise_backward", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _backward(
    grad: Tensor,
    out: Tensor,
    value: Tensor,
    shared: Tensor | None,
    query: Tensor | None,
    key: Tensor | None,
    bias: Tensor | None,
    tiled: Sequence[Tensor],
    repeated: Sequence[Tensor],
    mask: Tensor | None,
    is_causal: bool,
    offset: int,
    dropout_p: float,
    seed: Tensor | None,
    train_shared: bool,
) -> list[Tensor]:
    """Gradients of value, then of those of shared, query, key, bias that there are, then of tiled and repeated.

    Without `train_shared` that of shared is left out.
    """
    factors = _Factors(value, shared, query, key, bias, tiled, repeated, mask, is_causal, offset)
    inputs = [value, shared if train_shared else None, query, key, bias, *tiled, *repeated]
    # Sums over blocks: in float32, or many small addends would be lost in bfloat16.
    grads = [None if x is None else torch.zeros(x.shape, dtype=_wide(x), device=x.device) for x in inputs]
    with torch.autocast(value.device.type, enabled=False):
        for i, block in enumerate(factors.blocks()):
            weights = block.probabilities()
            keep = _keep(weights, dropout_p, seed, i)
            g = _matrices(grad[block.b, :, block.t])
            grad_weights = torch.bmm(g, _matrices(block.value).mT).view_as(weights).to(weights.dtype)
            dropped = weights
            if keep is not None:
                grad_weights, dropped = grad_weights * keep, weights * keep
            assert grads[0] is not None
            part = torch.bmm(dropped.to(value.dtype).flatten(0, 1).mT, g)
            grads[0][block.b, :, : block.columns] += part.view_as(block.value)
            products = g.view(-1, *out.shape[1:2], *g.shape[1:]).to(weights.dtype) * out[block.b, :, block.t]
            delta = products.sum(dim=-1, keepdim=True)
            _scatter(grads[1:], block, grad_weights.sub_(delta).mul_(weights), len(tiled))
    return [g.to(x.dtype) for g, x in zip(grads, inputs, strict=True) if g is not None and x is not None]


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _scatter(grads: Sequence[Tensor | None], block: _Block, grad: Tensor, terms: int) -> None:
    """Add the gradient of a block's logits, (B, H, T, S), to those of the factors."""
    shared, query, key, bias = grads[:4]
    if shared is not None:
        if shared.dim() == 4:
            shared[block.b, :, block.t, : block.columns] += grad
        else:
            shared[:, block.t, : block.columns] += grad.sum(dim=0)
    if bias is not None:
        bias[:, : block.columns] += grad.sum(dim=(0, 2))
    if query is not None and key is not None and block.query is not None and block.key is not None:
        matrices = grad.to(block.query.dtype).flatten(0, 1)
        part = torch.bmm(matrices, block.key)
        query[block.b, :, block.t] += part.view(-1, *query.shape[1:2], *part.shape[1:])
        part = torch.bmm(matrices.mT, block.query)
        part = part.view(-1, *key.shape[1:2], *part.shape[1:])
        if key.shape[0] == 1:
            key[:, :, : block.columns] += part.sum(dim=0, keepdim=True)
        else:
            key[block.b, :, : block.columns] += part
    for i in range(terms):
        grad_tiled, grad_repeated = grads[4 + i], grads[4 + terms + i]
        assert grad_tiled is not None
        assert grad_repeated is not None
        tiled, repeated = block.tiled[i], block.repeated[i]
        full = torch.nn.functional.pad(grad, (0, tiled.shape[-1] * repeated.shape[-1] - block.columns))
        full = full.unflatten(-1, (repeated.shape[-1], tiled.shape[-1]))
        grad_tiled[block.b, :, block.t] += (full * repeated.unsqueeze(-1)).sum(dim=-2)
        grad_repeated[block.b, :, block.t] += (full * tiled.unsqueeze(-2)).sum(dim=-1)


@_backward.register_fake
def _backward_fake(
    grad: Tensor,
    out: Tensor,
    value: Tensor,
    shared: Tensor | None,
    query: Tensor | None,
    key: Tensor | None,
    bias: Tensor | None,
    tiled: Sequence[Tensor],
    repeated: Sequence[Tensor],
    mask: Tensor | None,
    is_causal: bool,
    offset: int,
    dropout_p: float,
    seed: Tensor | None,
    train_shared: bool,
) -> list[Tensor]:
    inputs = [value, shared if train_shared else None, query, key, bias, *tiled, *repeated]
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs if x is not None]


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    value, shared, query, key, bias, tiled, repeated, mask, ctx.is_causal, ctx.offset, ctx.dropout_p, seed = inputs
    ctx.terms = len(tiled)
    ctx.save_for_backward(output, value, shared, query, key, bias, mask, seed, *tiled, *repeated)


def _autograd(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
    out, value, shared, query, key, bias, mask, seed, *outer = ctx.saved_tensors
    tiled, repeated = outer[: ctx.terms], outer[ctx.terms :]
    factors = (value, shared, query, key, bias, tiled, repeated)
    train_shared = ctx.needs_input_grad[1]
    grads = iter(_backward(grad, out, *factors, mask, ctx.is_causal, ctx.offset, ctx.dropout_p, seed, train_shared))
    wanted = (value, shared if train_shared else None, query, key, bias)
    single = [None if x is None else next(grads) for x in wanted]
    lists = [[next(grads) for _ in range(ctx.terms)] for _ in range(2)]
    return *single, *lists, None, None, None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)
