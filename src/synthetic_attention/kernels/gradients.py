"""The gradients of the factors that logits are made of, summed over blocks.

Shape legend: B batch, H heads, T queries, S keys; in a block E examples, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .block import add_product, wide
from .factors import Block, Factors, write

__all__ = ["Gradients"]


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
        """Add what the gradient of a block's logits, (E·H, R, C), means for the factors."""
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
        """The gradients that there are, in the dtypes of what they are of."""
        mine = [self.value, self.shared, self.shared_weight, self.bias]
        mine += [*self.queries, *self.keys, *self.tiled, *self.repeated]
        inputs = [factors.value, factors.shared, factors.shared_weight, factors.bias]
        inputs += [*factors.queries, *factors.keys, *factors.tiled, *factors.repeated]
        return [g.to(x.dtype) for g, x in zip(mine, inputs, strict=True) if g is not None and x is not None]


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """(H,): the inner products of matrices (H, T, S), without their elementwise product."""
    return torch.stack([torch.dot(x.flatten(), y.flatten().to(x.dtype)) for x, y in zip(a, b, strict=True)])
