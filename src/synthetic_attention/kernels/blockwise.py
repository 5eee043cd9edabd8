"""softmax(any sum of forms) · V, some examples and rows at a time, computed again in the backward.

Memory stays linear in length: of (B, H, T, S) only one block of a few MB exists, and the backward keeps the factors,
the output and nothing else. Where a block is one example, nothing is copied: heads are a batch of strided matrices,
as the projections wrote them, and the output and the gradients are laid out as the projections read them.

Shape legend: B batch, H heads, T queries, S keys, D width of a value, K width of a query, a·b ≥ S outer factors; in a
block E examples, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..logits import FactoredLogits
from .blocks import add_product, block_bytes, block_softmax, refuse_second_derivative, wide

__all__ = ["blockwise_attention"]

# Examples are worked on together, at the price of copies, while the scores of one are smaller than this.
_SMALL_EXAMPLE = 256 << 10


def matrices(x: Tensor) -> Tensor:
    """(E, H, …) to (E·H, …); a view where there is one example."""
    return x[0] if x.shape[0] == 1 else x.flatten(0, 1)


def _slice(start: int, size: int, end: int) -> slice:
    return slice(start, min(start + size, end))


@dataclass
class Block:
    """The factors of some examples `b`, heads `h` and rows `t`.

    Matrices are (E·H, …), shared scores (H or E·H, R, C), where H are the heads of the block.
    """

    b: slice
    h: slice
    t: slice
    columns: int
    shared: Tensor | None
    bias: Tensor | None
    queries: Sequence[Tensor]
    keys: Sequence[Tensor]
    tiled: Sequence[Tensor]
    repeated: Sequence[Tensor]
    mask: Tensor | None
    offset: int | None

    @property
    def heads(self) -> int:
        return self.h.stop - self.h.start

    def weights(self) -> Tensor:
        """softmax of the block's logits, (E·H, R, C) in float32 or higher."""
        return block_softmax(self._hide(self._scores()))

    def per_head(self, matrices: Tensor) -> Tensor:
        """(E·H, …) as (E, H, …)."""
        return matrices.unflatten(0, (-1, self.heads))

    def _scores(self) -> Tensor:
        alone = self.b.stop - self.b.start == 1
        columns = None if self.bias is None else self.bias[:, None]
        total = base = None
        if self.queries:
            query, key = self.queries[0], self.keys[0]
            if alone and query.dtype == wide(query):
                # One example: the product is added to the other terms in place.
                base = columns if self.shared is None else self.shared
            if base is None:
                total = torch.bmm(query, key.mT)
            else:
                base = base.to(query.dtype).expand(-1, query.shape[1], -1)
                total = torch.baddbmm(base, query, key.mT)
            for query, key in zip(self.queries[1:], self.keys[1:], strict=True):
                total.baddbmm_(query, key.mT)
            total = total.to(wide(total))
        for tiled, repeated in zip(self.tiled, self.repeated, strict=True):
            # Of two numbers in bfloat16 the product in float32 is exact.
            repeated, tiled = repeated.to(wide(repeated)), tiled.to(wide(tiled))
            product = (repeated.unsqueeze(-1) * tiled.unsqueeze(-2)).flatten(-2)[..., : self.columns]
            total = product if total is None else total.add_(product)
        assert total is not None
        if self.shared is not None and base is None:
            (total if self.shared.shape[0] == total.shape[0] else self.per_head(total)).add_(self.shared)
        if columns is not None and (base is None or self.shared is not None):
            self.per_head(total).add_(columns)
        return total

    def _hide(self, scores: Tensor) -> Tensor:
        """−inf at hidden keys, in place. Adding it is several times as fast as masked_fill."""
        if self.mask is not None:
            hidden = torch.zeros(self.mask.shape, dtype=scores.dtype, device=scores.device)
            self.per_head(scores).add_(hidden.masked_fill_(~self.mask, -torch.inf)[:, None, None])
        if self.offset is not None and self.offset + self.t.start < self.columns - 1:
            # Only in the last columns are there keys that some of the rows may not see.
            first = max(0, self.offset + self.t.start + 1)
            later = scores.new_full((scores.shape[1], self.columns - first), -torch.inf)
            scores[:, :, first:] += later.triu_(self.offset + self.t.start + 1 - first)
        return scores


@dataclass
class Factors:
    """Everything that the logits are made of; see `FactoredLogits`. Causal rows t see keys ≤ offset + t."""

    value: Tensor
    shared: Tensor | None
    shared_weight: Tensor | None
    bias: Tensor | None
    queries: Sequence[Tensor]
    keys: Sequence[Tensor]
    tiled: Sequence[Tensor]
    repeated: Sequence[Tensor]
    mask: Tensor | None
    offset: int | None

    @property
    def rows(self) -> int:
        for factor in (*self.queries, *self.tiled):
            return factor.shape[2]
        assert self.shared is not None
        return self.shared.shape[-2]

    def blocks(self) -> Iterator[Block]:
        batch, heads, columns, _ = self.value.shape
        rows, most = self.rows, block_bytes(self.value.device)
        # Rather fewer heads than fewer rows: products of many rows are the fast ones.
        step = rows if 4 * columns * rows <= most else max(64, most // (4 * columns))
        if self.offset is not None:
            # Blocks above the diagonal are skipped.
            step = min(step, max(64, rows // 4))
        together = min(heads, max(1, most // (4 * columns * step)))
        examples = max(1, most // (4 * columns * rows * heads))
        if self.value.device.type == "cpu" and 4 * columns * rows * heads >= _SMALL_EXAMPLE:
            examples = 1
        # Examples in the inner loop: the gradient of the shared scores of a block stays in the cache.
        for h in range(0, heads, together):
            for t in range(0, rows, step):
                some_heads, some_rows = _slice(h, together, heads), _slice(t, step, rows)
                shared = self._shared(some_heads, some_rows)
                for b in range(0, batch, examples):
                    yield self._block(_slice(b, examples, batch), some_heads, some_rows, shared)

    def _shared(self, h: slice, t: slice) -> Tensor | None:
        """The shared scores of a block, weighted: (H, R, S) or (B, H, R, S)."""
        if self.shared is None:
            return None
        scores = self.shared[..., h, t, :]
        if self.shared_weight is None:
            return scores
        weight = self.shared_weight if self.shared_weight.shape[0] == 1 else self.shared_weight[h]
        return scores * weight[:, None, None]

    def _block(self, b: slice, h: slice, t: slice, shared: Tensor | None) -> Block:
        columns = self.value.shape[2]
        if self.offset is not None:
            # Causal rows see nothing past the last of them.
            columns = min(columns, max(self.offset + t.stop, 1))
        examples = b.stop - b.start
        if shared is not None:
            shared = matrices(shared[b, ..., :columns]) if shared.dim() == 4 else shared[..., :columns]
        keys = [key if key.shape[0] == 1 else key[b] for key in self.keys]
        return Block(
            b=b,
            h=h,
            t=t,
            columns=columns,
            shared=shared,
            bias=None if self.bias is None else self.bias[h, :columns],
            queries=[matrices(query[b, h, t]) for query in self.queries],
            keys=[matrices(key[:, h, :columns].expand(examples, -1, -1, -1)) for key in keys],
            tiled=[matrices(x[b, h, t]) for x in self.tiled],
            repeated=[matrices(x[b, h, t]) for x in self.repeated],
            mask=None if self.mask is None else self.mask[b, :columns],
            offset=self.offset,
        )


def write(out: Tensor, block: Block, a: Tensor, b: Tensor) -> None:
    """a @ b to the rows of a block in out, (B, T, H, …)."""
    target = out[block.b, block.t, block.h].transpose(1, 2)
    if target.shape[0] == 1 and target.dtype == a.dtype:
        torch.bmm(a, b, out=target[0])
    else:
        target.copy_(block.per_head(torch.bmm(a, b)))


@dataclass
class Gradients:
    """Sums over blocks, in float32 or higher: many small addends would be lost in bfloat16.

    Those of value, queries and keys are laid out (B, S, H, …), as the projections read them.
    """

    value: Tensor
    shared: Tensor | None
    shared_weight: Tensor | None
    bias: Tensor | None
    queries: Sequence[Tensor]
    keys: Sequence[Tensor]
    tiled: Sequence[Tensor]
    repeated: Sequence[Tensor]

    @classmethod
    def zeros(cls, factors: Factors, train_shared: bool) -> Gradients:
        """Nothing added yet."""

        def like(x: Tensor) -> Tensor:
            return torch.zeros(x.shape, dtype=wide(x), device=x.device)

        def by_token(x: Tensor) -> Tensor:
            return like(x.transpose(1, 2)).transpose(1, 2)

        return cls(
            by_token(factors.value),
            like(factors.shared) if factors.shared is not None and train_shared else None,
            None if factors.shared_weight is None else like(factors.shared_weight),
            None if factors.bias is None else like(factors.bias),
            [by_token(x) for x in factors.queries],
            [by_token(x) for x in factors.keys],
            [like(x) for x in factors.tiled],
            [like(x) for x in factors.repeated],
        )

    @staticmethod
    def add_to(total: Tensor, block: Block, columns: int, a: Tensor, b: Tensor) -> None:
        """Add a @ b, (E·H, columns, …), to the first columns of the block's examples; or of all, if they share."""
        if total.shape[0] == 1 < block.b.stop - block.b.start:
            total[0, block.h, :columns] += block.per_head(torch.bmm(a, b)).sum(dim=0)
        elif block.b.stop - block.b.start == 1:
            add_product(total[0 if total.shape[0] == 1 else block.b.start, block.h, :columns], a, b)
        else:
            total[block.b, block.h, :columns] += block.per_head(torch.bmm(a, b))

    def add_scores(self, block: Block, grad: Tensor) -> None:
        """Add the gradients of the factors, from that of a block's logits, (E·H, R, C)."""
        if self.shared is not None:
            if self.shared.dim() == 4:
                self.shared[block.b, block.h, block.t, : block.columns] += block.per_head(grad)
            else:
                total = grad if grad.shape[0] == block.heads else block.per_head(grad).sum(dim=0)
                self.shared[block.h, block.t, : block.columns] += total
        if self.bias is not None:
            self.bias[block.h, : block.columns] += block.per_head(grad.sum(dim=1)).sum(dim=0)
        for i, (query, key) in enumerate(zip(block.queries, block.keys, strict=True)):
            narrow = grad.to(query.dtype)
            write(self.queries[i].transpose(1, 2), block, narrow, key)
            self.add_to(self.keys[i], block, block.columns, narrow.mT, query)
        for i, (tiled, repeated) in enumerate(zip(block.tiled, block.repeated, strict=True)):
            full = torch.nn.functional.pad(grad, (0, tiled.shape[-1] * repeated.shape[-1] - block.columns))
            full = full.unflatten(-1, (repeated.shape[-1], tiled.shape[-1]))
            # Products of many small matrices take half the time of elementwise ones and their sums.
            repeated, tiled = repeated.to(full.dtype), tiled.to(full.dtype)
            grad_tiled = torch.matmul(repeated.unsqueeze(-2), full).squeeze(-2)
            grad_repeated = torch.matmul(full, tiled.unsqueeze(-1)).squeeze(-1)
            self.tiled[i][block.b, block.h, block.t] = block.per_head(grad_tiled)
            self.repeated[i][block.b, block.h, block.t] = block.per_head(grad_repeated)

    def weigh_shared(self, factors: Factors, wanted: bool) -> None:
        """From the gradient of the weighted scores to those of the weight and of the scores."""
        weight, scores = factors.shared_weight, factors.shared
        if weight is None or scores is None or self.shared is None or self.shared_weight is None:
            return
        per_head = (self.shared * scores).sum(dim=(-2, -1)) if scores.dim() == 4 else _dots(self.shared, scores)
        per_head = per_head.sum(dim=0) if scores.dim() == 4 else per_head
        self.shared_weight += per_head.sum() if weight.shape[0] == 1 else per_head
        if wanted:
            self.shared *= weight[:, None, None]
        else:
            self.shared = None

    def as_inputs(self, factors: Factors) -> list[Tensor]:
        """All gradients except the missing ones, in the dtypes of the inputs."""
        mine = [self.value, self.shared, self.shared_weight, self.bias]
        mine += [*self.queries, *self.keys, *self.tiled, *self.repeated]
        inputs = [factors.value, factors.shared, factors.shared_weight, factors.bias]
        inputs += [*factors.queries, *factors.keys, *factors.tiled, *factors.repeated]
        return [g.to(x.dtype) for g, x in zip(mine, inputs, strict=True) if g is not None and x is not None]


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """(H,): the inner products of matrices (H, T, S), without their elementwise product."""
    return torch.stack([torch.dot(x.flatten(), y.flatten().to(x.dtype)) for x, y in zip(a, b, strict=True)])


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


# The factors of the logits, what hides them, and dropout: the same for both operators.
_TERMS = (
    "Tensor value, Tensor? shared, Tensor? shared_weight, Tensor? bias, Tensor[] queries, Tensor[] keys, "
    "Tensor[] tiled, Tensor[] repeated, Tensor? mask, SymInt? offset, float dropout_p, Tensor? seed"
)


def _operator(name: str, schema: str) -> Any:
    tags = (torch.Tag.cudagraph_unsafe,)
    return torch.library.custom_op(f"synthetic_attention::{name}", mutates_args=(), schema=schema, tags=tags)


@_operator("blockwise_forward", f"({_TERMS}) -> Tensor")
def _forward(value: Tensor, *others: Any) -> Tensor:
    """The output, (B, T, H, D)."""
    *terms, dropout_p, seed = others
    factors = Factors(value, *terms)
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


@_operator("blockwise_backward", f"(Tensor grad, {_TERMS}, bool train_shared) -> Tensor[]")
def _backward(grad: Tensor, value: Tensor, *others: Any) -> list[Tensor]:
    """Gradients of value, then of those of shared and bias that there are, then of the others in their order.

    Without `train_shared` that of shared is left out.
    """
    *terms, dropout_p, seed, train_shared = others
    factors = Factors(value, *terms)
    grads = Gradients.zeros(factors, train_shared or factors.shared_weight is not None)
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
