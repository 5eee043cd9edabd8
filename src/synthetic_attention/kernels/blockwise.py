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
from typing import Any, Self

import torch
from torch import Tensor

from ..logits import FactoredLogits, without_overflow
from .blocks import block_bytes, block_softmax, blocks, hide_later, operator, slices, wide
from .matmul import add_product, batch_product, sum_with_product, write_product

# Examples are worked on together, at the price of copies, while the scores of one are smaller than this.
_SMALL_EXAMPLE = 256 << 10


@dataclass
class Block:
    """Some examples `b`, heads `h` and rows `t`, and what belongs to them of the arguments.

    Their matrices are (E·H, …), shared scores (H or E·H, R, C), where H are the heads of the block.
    """

    b: slice
    h: slice
    t: slice
    columns: int
    own: Attention

    @property
    def examples(self) -> int:
        return self.b.stop - self.b.start

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
        shared, bias = self.own.shared, self.own.bias
        columns = None if bias is None else bias[:, None]
        total = base = None
        for query, key in self.own.inner:
            query, key = without_overflow(query), without_overflow(key)
            if total is not None:
                add_product(total, query, key.mT)
                continue
            if self.examples == 1 and query.dtype == wide(query):
                # One example: the product is added to the other terms in place.
                base = columns if shared is None else shared
            if base is None:
                total = batch_product(query, key.mT)
            else:
                total = sum_with_product(base.to(query.dtype).expand(-1, query.shape[1], -1), query, key.mT)
        total = None if total is None else total.to(wide(total))
        for tiled, repeated in self.own.outer:
            # A product of two bfloat16 numbers is exact in float32.
            repeated, tiled = repeated.to(wide(repeated)), tiled.to(wide(tiled))
            product = (repeated.unsqueeze(-1) * tiled.unsqueeze(-2)).flatten(-2)[..., : self.columns]
            total = product if total is None else total.add_(product)
        if total is None:
            assert shared is not None
            total = shared.new_zeros(len(self.own.value), *shared.shape[-2:], dtype=wide(shared))
        if shared is not None and base is None:
            (total if shared.shape[0] == total.shape[0] else self.per_head(total)).add_(shared)
        if columns is not None and (base is None or shared is not None):
            self.per_head(total).add_(columns)
        return total

    def _hide(self, scores: Tensor) -> Tensor:
        """−inf at hidden keys, in place. Adding it is several times as fast as masked_fill."""
        if (mask := self.own.mask) is not None:
            hidden = torch.zeros(mask.shape, dtype=scores.dtype, device=scores.device)
            self.per_head(scores).add_(hidden.masked_fill_(~mask, -torch.inf)[:, None, None])
        return hide_later(scores, self.own.offset, self.t.start)


@dataclass
class Attention:
    """The arguments of an operator: values, all that the logits are made of, what hides keys, and dropout.

    Also what belongs of them to a block, and their gradients; None where a term is absent.

    Attributes:
        value: (B, H, S, D).
        shared, weight: (H, T, S) or (B, H, T, S), and its factor, (H,) or (1,).
        bias: (H, S).
        inner: pairs of query and key, (B, H, T, K) and (B or 1, H, S, K).
        outer: pairs of tiled and repeated, (B, H, T, a) and (B, H, T, b).
        mask: (B, S), bool.
        offset: row t sees keys ≤ offset + t; None for all.
        seed: (1,), int64; with dropout.
        kept: (H, T, S), factors of dropout for all examples, in the place of `seed`.
    """

    value: Tensor
    shared: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    inner: Sequence[tuple[Tensor, Tensor]] = ()
    outer: Sequence[tuple[Tensor, Tensor]] = ()
    mask: Tensor | None = None
    offset: int | None = None
    dropout_p: float = 0.0
    seed: Tensor | None = None
    kept: Tensor | None = None

    @classmethod
    def of(cls, value: Tensor, shared: Any, weight: Any, bias: Any, inner: Any, outer: Any, *others: Any) -> Self:
        """From the arguments of an operator, with the tensors of inner and of outer terms in one list each."""
        inner, outer = (list(zip(terms[::2], terms[1::2], strict=True)) for terms in (inner, outer))
        return cls(value, shared, weight, bias, inner, outer, *others)

    def tensors(self) -> list[Tensor | None]:
        """What has a gradient, in the order of an operator's arguments."""
        pairs = [x for pair in (*self.inner, *self.outer) for x in pair]
        return [self.value, self.shared, self.weight, self.bias, *pairs]

    @property
    def rows(self) -> int:
        """T."""
        factors = (*(first for first, _ in (*self.inner, *self.outer)), self.shared)
        return next(x.shape[-2] for x in factors if x is not None)

    def empty_outputs(self) -> Any:
        """(B, T, H, D)."""
        batch, heads, _, width = self.value.shape
        return self.value.new_empty(batch, self.rows, heads, width)

    def blocks(self) -> Iterator[tuple[Block, Tensor, Tensor | None]]:
        """The blocks, their weights, and the factors of dropout, the same in forward and backward."""
        for i, block in enumerate(self._blocks()):
            weights, keep = block.weights(), None
            if self.kept is not None:
                keep = self.kept[block.h, block.t, : block.columns].repeat(block.examples, 1, 1)
            elif self.seed is not None:
                keep = self.draw(self.seed, i, block, weights)
                keep = keep.div_(1 - self.dropout_p) if self.dropout_p < 1 else keep
            yield block, weights, keep

    def draw(self, seed: Tensor, index: int, block: Block, weights: Tensor) -> Tensor:
        """1 where dropout keeps the weights of a block, else 0."""
        generator = torch.Generator(weights.device).manual_seed(int(seed) + index)
        return torch.empty_like(weights).bernoulli_(1 - self.dropout_p, generator=generator)

    def forward(self) -> Any:
        out = self.empty_outputs()
        self.write(out)
        return out

    def write(self, out: Tensor) -> None:
        """Write the output, (B, T, H, D), by blocks."""
        for block, weights, keep in self.blocks():
            weights = weights if keep is None else weights.mul_(keep)
            _write(out, block, weights.to(self.value.dtype), block.own.value)

    def saved(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        """The backward computes the weights again."""
        return (None,)

    def backward(self, grad: Tensor, saved: Sequence[Any], needs: Sequence[bool]) -> list[Tensor | None]:
        return self.gradients(grad, needs).tensors()

    def empty_gradients(self, needs: Sequence[bool]) -> list[Tensor | None]:
        return self._zeros(any(needs[1:3])).tensors()

    def gradients(self, grad: Tensor, needs: Sequence[bool]) -> Attention:
        """The gradients by blocks, in float32 or higher; that of shared only if it, or its weight's, is needed."""
        total = self._zeros(any(needs[1:3]))
        for block, weights, keep in self.blocks():
            g = _matrices(grad[block.b, block.t, block.h].transpose(1, 2))
            _add(total.value, block, (weights if keep is None else weights * keep).to(g.dtype).mT, g)
            grad_weights = batch_product(g, block.own.value.mT).to(weights.dtype)
            if keep is not None:
                grad_weights *= keep
            # In place: it reads each row before it writes it.
            torch.ops.aten._softmax_backward_data.out(grad_weights, weights, -1, weights.dtype, grad_input=grad_weights)
            _add_gradients(total, block, grad_weights)
        self._weigh_shared(total, needs)
        return total

    def _weigh_shared(self, total: Attention, needs: Sequence[bool]) -> None:
        """From the gradient of the weighted scores to those of the weight and of the scores."""
        weight, scores = self.weight, self.shared
        if weight is None or scores is None or total.shared is None:
            return
        # Inner products of matrices, without their elementwise product.
        pairs = zip(total.shared.movedim(-3, 0), scores.movedim(-3, 0), strict=True)
        per_head = torch.stack([torch.dot(x.flatten(), y.flatten().to(x.dtype)) for x, y in pairs])
        total.weight = per_head.sum(dim=0, keepdim=True) if len(weight) == 1 else per_head
        if needs[1]:
            total.shared.mul_(weight[:, None, None])

    def _zeros(self, train_shared: bool) -> Attention:
        """Sums over blocks, in float32 or higher: many small addends would be lost in bfloat16.

        Those of factors with rows of their own are laid out (B, S, H, …), as the projections read them.
        """

        def like(x: Tensor) -> Tensor:
            return torch.zeros(x.shape, dtype=wide(x), device=x.device)

        def by_token(x: Tensor) -> Tensor:
            return like(x.transpose(1, 2)).transpose(1, 2)

        return Attention(
            by_token(self.value),
            like(self.shared) if self.shared is not None and train_shared else None,
            None if self.weight is None else like(self.weight),
            None if self.bias is None else like(self.bias),
            [(by_token(x), by_token(y)) for x, y in self.inner],
            [(by_token(x), by_token(y)) for x, y in self.outer],
        )

    def _blocks(self) -> Iterator[Block]:
        (batch, heads, columns, _), rows, device = self.value.shape, self.rows, self.value.device
        examples = max(1, block_bytes(device) // (4 * columns * rows * heads))
        if device.type == "cpu" and 4 * columns * rows * heads >= _SMALL_EXAMPLE:
            examples = 1
        # Examples in the inner loop: the gradient of the shared scores of a block stays in the cache.
        for h, t, last in blocks((heads, rows, columns), 4, device, self.offset):
            shared, weight = self.shared, self.weight
            if shared is not None:
                shared = shared[..., h, t, :last]
                if weight is not None:
                    shared = shared * (weight if len(weight) == 1 else weight[h])[:, None, None]
            for b in slices(batch, examples):
                yield self._block(b, h, t, last, shared)

    def _block(self, b: slice, h: slice, t: slice, columns: int, shared: Tensor | None) -> Block:
        if shared is not None and shared.dim() == 4:
            shared = _matrices(shared[b])
        keys = [key if key.shape[0] == 1 else key[b] for _, key in self.inner]
        keys = [_matrices(key[:, h, :columns].expand(b.stop - b.start, -1, -1, -1)) for key in keys]
        own = Attention(
            value=_matrices(self.value[b, h, :columns]),
            shared=shared,
            bias=None if self.bias is None else self.bias[h, :columns],
            inner=[(_matrices(query[b, h, t]), key) for (query, _), key in zip(self.inner, keys, strict=True)],
            outer=[(_matrices(x[b, h, t]), _matrices(y[b, h, t])) for x, y in self.outer],
            mask=None if self.mask is None else self.mask[b, :columns],
            offset=self.offset,
        )
        return Block(b, h, t, columns, own)


def _matrices(x: Tensor) -> Tensor:
    """(E, H, …) to (E·H, …); a view where there is one example."""
    return x[0] if x.shape[0] == 1 else x.flatten(0, 1)


def _write(out: Tensor, block: Block, a: Tensor, b: Tensor) -> None:
    """a @ b to the rows of a block in out, (B, T, H, …)."""
    target = out[block.b, block.t, block.h].transpose(1, 2)
    if len(target) == 1:
        write_product(a, b, target[0])
    else:
        target.copy_(block.per_head(batch_product(a, b)))


def _add(total: Tensor, block: Block, a: Tensor, b: Tensor) -> None:
    """Add a @ b, (E·H, columns, …), to the first columns of the block's examples; or of all, if they share."""
    columns = block.columns
    if total.shape[0] == 1 < block.examples:
        total[0, block.h, :columns] += block.per_head(batch_product(a, b)).sum(dim=0)
    elif block.examples == 1:
        add_product(total[0 if total.shape[0] == 1 else block.b.start, block.h, :columns], a, b)
    else:
        total[block.b, block.h, :columns] += block.per_head(batch_product(a, b))


def _add_gradients(total: Attention, block: Block, grad: Tensor) -> None:
    """Add the gradients of the factors, from a block's gradient of the logits, (E·H, R, C)."""
    b, h, t, columns = block.b, block.h, block.t, block.columns
    if total.shared is not None:
        if total.shared.dim() == 4:
            total.shared[b, h, t, :columns] += block.per_head(grad)
        else:
            shared = grad if grad.shape[0] == block.heads else block.per_head(grad).sum(dim=0)
            total.shared[h, t, :columns] += shared
    if total.bias is not None:
        total.bias[h, :columns] += block.per_head(grad.sum(dim=1)).sum(dim=0)
    for (query, key), (to_query, to_key) in zip(block.own.inner, total.inner, strict=True):
        narrow = grad.to(query.dtype)
        _write(to_query.transpose(1, 2), block, narrow, key)
        _add(to_key, block, narrow.mT, query)
    for (tiled, repeated), (to_tiled, to_repeated) in zip(block.own.outer, total.outer, strict=True):
        full = torch.nn.functional.pad(grad, (0, tiled.shape[-1] * repeated.shape[-1] - columns))
        full = full.unflatten(-1, (repeated.shape[-1], tiled.shape[-1]))
        # Products of many small matrices take half the time of elementwise ones and their sums.
        repeated, tiled = repeated.to(full.dtype), tiled.to(full.dtype)
        to_tiled[b, h, t] = block.per_head(torch.matmul(repeated.unsqueeze(-2), full).squeeze(-2))
        to_repeated[b, h, t] = block.per_head(torch.matmul(full, tiled.unsqueeze(-1)).squeeze(-1))


# The schema of an `Attention`.
ARGUMENTS = (
    "Tensor value, Tensor? shared, Tensor? weight, Tensor? bias, Tensor[] inner, Tensor[] outer, Tensor? mask, "
    "SymInt? offset, float dropout_p, Tensor? seed"
)
_forward = operator("blockwise", Attention.of, ARGUMENTS, 1, torch.Tag.cudagraph_unsafe)


def blockwise_attention(
    factored: FactoredLogits, value: Tensor, mask: Tensor | None, offset: int | None, dropout_p: float
) -> Tensor:
    """softmax(logits) · value as in `attend`, row t sees keys ≤ offset + t; a view of a contiguous (B, T, H, D)."""
    inner = [x.to(value.dtype) for term in factored.inner for x in (term.scaled_query, term.key)]
    outer = [x.to(value.dtype) for term in factored.outer for x in (term.tiled, term.repeated)]
    shared = factored.shared, factored.shared_weight, factored.bias
    seed = torch.randint(2**62, (1,)) if dropout_p > 0 else None
    return _forward(value, *shared, inner, outer, mask, offset, dropout_p, seed).transpose(1, 2)
