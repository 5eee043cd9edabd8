"""What logits are made of, and the blocks that the block-wise kernel cuts them into.

Shape legend: B batch, H heads, T queries, S keys, K width of a query, a·b ≥ S outer factors; in a block E examples,
R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .block import block_bytes, block_softmax, wide

__all__ = ["Block", "Factors", "matrices", "write"]

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
                # One example: what is added to the product is where the product starts from.
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
            # What stands above the diagonal is left out block by block.
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
