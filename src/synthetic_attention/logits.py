"""Attention logits in factored form, from a synthesizing function to `attend`, and the positions they are asked for.

Shape legend: B batch, H heads, G keys or values that H / G heads in a row share, T queries (rows), S keys (columns), K
width of a query, a·b ≥ S outer factors.
No form stores an (B, H, T, S) matrix unless it is handed one; `dense` builds it, for tests, plots and weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


def leading(x: Tensor, count: int, dim: int) -> Tensor:
    """The first `count` entries of an axis of x."""
    if torch.compiler.is_exporting():
        # A slice would bind the exported graph to lengths below the whole axis.
        return x.index_select(dim, torch.arange(count, device=x.device))
    # A slice of the whole axis is x itself; `narrow` would copy the gradient of R.
    return x[(slice(None),) * (dim % x.dim()) + (slice(count),)]


class Movable:
    """A dataclass with a method `to`, for models that are spread over several devices."""

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The same with all tensors moved; arguments as of `torch.Tensor.to`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        moved = {name: x.to(*args, **kwargs) for name, x in values.items() if isinstance(x, Tensor | Movable)}
        return replace(self, **moved)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class Positions(Movable):
    """The rows and columns of the logits that a synthesizing function is asked for.

    Attributes:
        rows: T, the new tokens.
        columns: S, the keys in use, new ones included.
        row_index: the positions of the rows: (B, T) where they differ by example (decoding a left-padded batch), (T,)
            where they are data (a static cache in compiled code), else None: row t is at position columns − rows + t.
        key_index: (B, S), the positions of the columns where they differ by example; else None: column s is at s.
    """

    rows: int
    columns: int
    row_index: Tensor | None = None
    key_index: Tensor | None = None

    @property
    def offset(self) -> int:
        """The position of the first row, where all examples have the same."""
        return self.columns - self.rows

    def queries(self, device: torch.device) -> Tensor:
        """The positions of the rows, (T,) or (B, T)."""
        if self.row_index is not None:
            return self.row_index
        return torch.arange(self.offset, self.columns, device=device)

    def keys(self, device: torch.device) -> Tensor:
        """The positions of the columns, (S,) or (B, S)."""
        return torch.arange(self.columns, device=device) if self.key_index is None else self.key_index

    def take(self, table: Tensor) -> Tensor:
        """Cut a table of scores (H, N, N) to (H, T, S), or (B, H, T, S) where positions differ by example."""
        if self.key_index is None:
            return leading(self.take_rows(table), self.columns, -1)
        assert self.row_index is not None
        return table[:, self.row_index[:, :, None], self.key_index[:, None, :]].transpose(0, 1)

    def take_rows(self, table: Tensor) -> Tensor:
        """Cut a table (H, N, …) to the rows, (H, T, …), where all examples have the same positions."""
        if self.row_index is None and not torch.compiler.is_exporting():
            return table[:, self.offset : self.columns]
        return table.index_select(1, self.queries(table.device))

    def take_columns(self, scores: Tensor) -> Tensor:
        """Bring the columns of scores (B, H, T, ≥ S) from the order of positions into the order of the slots."""
        if self.key_index is None:
            return leading(scores, self.columns, -1)
        return scores.gather(-1, self.key_index[:, None, None, :].expand(*scores.shape[:3], -1))


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Shared keys or values (B, G, S, K) for each head, (B, H, S, K), in the memory layout that they have."""
    if x.shape[1] == heads:
        return x
    # By feature, (G, K, B, S), or by token.
    order, back = ((1, 3, 0, 2), (2, 0, 3, 1)) if x.stride(-1) != 1 else ((1, 0, 2, 3), (1, 0, 2, 3))
    return x.permute(order).repeat_interleave(heads // x.shape[1], dim=0).permute(back)


def shared_product(x: Tensor, y: Tensor) -> Tensor:
    """x (B, H, T, C) times shared y (B, G, C, D), without a copy of y for each head: (B, H, T, D)."""
    if x.shape[1] <= y.shape[1]:
        return x @ y
    if torch.compiler.is_exporting():
        # Products of lengths would bind the exported graph to some of them.
        return x @ repeat_heads(y, x.shape[1])
    product = x.unflatten(1, (y.shape[1], -1)).flatten(2, 3) @ y
    return product.reshape(product.shape[0], *x.shape[1:3], y.shape[3])


class Logits:
    """Attention logits (B, H, T, S), held as factors.

    Attributes:
        rows, columns: T and S.
        shape: (B, H, T, S), where shared scores may have 1 for B or H; mixtures and groups have only their terms'.
        is_shared: whether they are the same for all examples.
    """

    rows: int
    columns: int
    shape: tuple[int, ...]
    is_shared: bool = False

    def plus(self, scores: Tensor) -> Logits:
        """The sum with scores (H or 1, T, S) or (B, H or 1, T, S)."""
        return MixedLogits([self, SharedLogits(scores)])

    def dense(self, length: int | None = None) -> Tensor:
        """The logits as one tensor, (H, T, S) where all examples share them, else (B, H, T, S).

        Args:
            length: number of keys S; by default as many as the form has.
        """
        if length is None:
            return self._dense(self.columns)
        if not torch.compiler.is_exporting() and length > self.columns:
            raise ValueError(f"got length {length}; expected at most {self.columns}")
        return self._dense(length)

    def _dense(self, columns: int) -> Tensor:
        """The first columns of the logits."""
        raise NotImplementedError


class SharedLogits(Logits):
    """The same scores for every example: random, fixed random, factorized random.

    Args:
        scores: (H, T, S); (B, H, T, S) only where positions differ by example (decoding a left-padded batch). `attend`
            takes 1 for H or B too.

    Raises:
        ValueError: scores are neither 3- nor 4-dimensional.
    """

    def __init__(self, scores: Tensor) -> None:
        if scores.dim() not in (3, 4):
            raise ValueError(f"got scores of shape {tuple(scores.shape)}; expected (H, T, S) or (B, H, T, S)")
        self.scores, self.is_shared, (self.rows, self.columns) = scores, scores.dim() == 3, scores.shape[-2:]
        self.shape = scores.shape if scores.dim() == 4 else (1, *scores.shape)

    @classmethod
    def from_bias(cls, bias: Tensor, batch: int, heads: int, rows: int, columns: int) -> SharedLogits:
        """An additive bias (T, S), (H or 1, T, S) or (B or 1, H or 1, T, S) as scores of all heads, or ValueError."""
        if not bias.is_floating_point():
            raise ValueError(
                f"got attn_bias of dtype {bias.dtype}; expected floats that are added to the logits: 0 where a key may "
                "be seen, -inf where it may not"
            )
        shape = (1,) * (4 - bias.dim()) + tuple(bias.shape)
        fits = 2 <= bias.dim() <= 4 and shape[2:] == (rows, columns)
        if not fits or shape[0] not in (1, batch) or shape[1] not in (1, heads):
            raise ValueError(
                f"got attn_bias of shape {tuple(bias.shape)}; expected (T, S), (H, T, S) or (B, H, T, S) with B = "
                f"{batch}, H = {heads} (or 1 for either), T = {rows}, S = {columns}"
            )
        scores = bias.view(shape).expand(-1, heads, -1, -1)
        return cls(scores if shape[0] > 1 else scores[0])

    def _dense(self, columns: int) -> Tensor:
        return leading(self.scores, columns, -1)


def without_overflow(x: Tensor) -> Tensor:
    """float16 as float32 on a CPU, where products of large numbers would be infinite.

    Not on other devices, whose products in float32 are many times slower.
    """
    return x.float() if x.dtype == torch.float16 and x.device.type == "cpu" else x


class InnerLogits(Logits):
    """scale · query · keyᵀ + bias: dot-product attention, and dense with a learned key (Table 1 of the paper).

    Args:
        query: (B, H, T, K).
        key: (B, H, S, K), or (1, H, S, K) where it is a parameter; (B, G, S, K) where heads share keys.
        bias: (H, S), added to every row, or None.
        scale: a number the product is multiplied by.

    Raises:
        ValueError: the shapes do not fit together.
    """

    def __init__(self, query: Tensor, key: Tensor, bias: Tensor | None = None, *, scale: float = 1.0) -> None:
        fits = len(query.shape) == len(key.shape) == 4 and query.shape[3] == key.shape[3]
        fits = fits and key.shape[0] in (1, query.shape[0]) and key.shape[1] > 0
        if not fits or query.shape[1] % key.shape[1]:
            raise ValueError(
                f"got query {tuple(query.shape)} with key {tuple(key.shape)}; expected (B, H, T, K) and (B or 1, H, S, "
                "K), where the key may have a divisor of H"
            )
        self.query, self.key, self.bias, self.scale = query, key, bias, scale
        self.rows, self.columns = query.shape[2], key.shape[2]
        self.shape = (*query.shape[:3], self.columns)
        if bias is not None and bias.shape != self.shape[1::2]:
            raise ValueError(f"got bias {tuple(bias.shape)}; expected (H, S) = {self.shape[1::2]}")

    @property
    def scaled_query(self) -> Tensor:
        """scale · query."""
        return self.query if self.scale == 1.0 else self.query * self.scale

    def _dense(self, columns: int) -> Tensor:
        query, key = without_overflow(self.scaled_query), without_overflow(leading(self.key, columns, 2)).mT
        if key.shape[0] != 1 or query.shape[0] == 1:
            logits = shared_product(query, key)
        else:
            # All examples of a head in one product: a broadcast key would be copied for each.
            product = query.transpose(0, 1).flatten(1, 2) @ repeat_heads(key, query.shape[1])[0]
            logits = product.unflatten(1, (query.shape[0], self.rows)).transpose(0, 1)
        return logits if self.bias is None else logits + without_overflow(leading(self.bias, columns, 1))[:, None]


class OuterLogits(Logits):
    """Column j is tiled[j mod a] · repeated[j div a]: factorized dense.

    Args:
        tiled: (B, H, T, a).
        repeated: (B, H, T, b); S is the first S ≤ a·b columns.

    Raises:
        ValueError: the shapes do not fit together.
    """

    def __init__(self, tiled: Tensor, repeated: Tensor) -> None:
        if len(tiled.shape) != 4 or len(repeated.shape) != 4 or tiled.shape[:3] != repeated.shape[:3]:
            raise ValueError(
                f"got tiled {tuple(tiled.shape)} with repeated {tuple(repeated.shape)}; expected (B, H, T, a) and "
                "(B, H, T, b)"
            )
        self.tiled, self.repeated = tiled, repeated
        self.rows, self.columns = tiled.shape[2], tiled.shape[3] * repeated.shape[3]
        self.shape = (*tiled.shape[:3], self.columns)

    def _dense(self, columns: int) -> Tensor:
        repeated, tiled = without_overflow(self.repeated), without_overflow(self.tiled)
        return leading((repeated.unsqueeze(-1) * tiled.unsqueeze(-2)).flatten(-2), columns, -1)


class MixedLogits(Logits):
    """Σ weights[i, h] · terms[i], mixed inside ONE softmax.

    Args:
        terms: at least one form of logits (mixtures may nest).
        weights: (terms, H), or (terms, 1) for one weight in all heads; None is the plain sum.

    Raises:
        ValueError: no terms, a weight for another number of terms, or groups of heads as a term.
    """

    def __init__(self, terms: Sequence[Logits], weights: Tensor | None = None) -> None:
        if not terms:
            raise ValueError("got no terms; expected at least one form of logits")
        if weights is not None and (len(weights.shape) != 2 or weights.shape[0] != len(terms)):
            raise ValueError(f"got weights {tuple(weights.shape)}; expected (terms, H) with terms = {len(terms)}")
        if any(isinstance(term, GroupedLogits) for term in terms):
            raise ValueError("got groups of heads in a mixture; expected mixtures in the groups")
        self.terms, self.weights, self.is_shared = tuple(terms), weights, all(term.is_shared for term in terms)
        self.rows, self.columns = terms[0].rows, min(term.columns for term in terms)

    def _dense(self, columns: int) -> Tensor:
        dense = [without_overflow(term.dense(columns)) for term in self.terms]
        if self.weights is not None:
            weights = self.weights[..., None, None]
            dense = [term * weights[i] for i, term in enumerate(dense)]
        return sum(dense[1:], start=dense[0])


class GroupedLogits(Logits):
    """Logits of several groups of heads, side by side: `attend` computes each group by its own kernel.

    Args:
        groups: the logits of each group.
        sizes: how many heads each has.

    Raises:
        ValueError: no groups, or not one size for each.
    """

    def __init__(self, groups: Sequence[Logits], sizes: Sequence[int]) -> None:
        if not groups or len(groups) != len(sizes):
            raise ValueError(f"got {len(groups)} groups with sizes {tuple(sizes)}; expected a size for each")
        self.groups, self.sizes, self.is_shared = tuple(groups), tuple(sizes), all(group.is_shared for group in groups)
        self.rows, self.columns = groups[0].rows, min(group.columns for group in groups)

    def plus(self, scores: Tensor) -> Logits:
        own = [scores] * len(self.sizes) if scores.shape[-3] == 1 else scores.split(self.sizes, dim=-3)
        return GroupedLogits([group.plus(part) for group, part in zip(self.groups, own, strict=True)], self.sizes)

    def _dense(self, columns: int) -> Tensor:
        dense = [group.dense(columns) for group in self.groups]
        batch = torch.broadcast_shapes(*(x.shape[:-3] for x in dense))
        return torch.cat([x.expand(*batch, n, -1, -1) for x, n in zip(dense, self.sizes, strict=True)], dim=-3)


@dataclass
class FactoredLogits:
    """Any logits as at most one shared term, some inner and some outer ones, the weights folded into the cheap factor.

    Attributes:
        shared: (H, T, S) or (B, H, T, S), or None.
        shared_weight: (H,) or (1,), a factor not yet applied to it (this saves a copy of H·T·S), or None for 1.
        bias: (H, S), the sum of the biases of the inner terms, or None.
        inner: without biases.
    """

    shared: Tensor | None = None
    shared_weight: Tensor | None = None
    bias: Tensor | None = None
    inner: tuple[InnerLogits, ...] = ()
    outer: tuple[OuterLogits, ...] = ()

    @classmethod
    def of(cls, logits: Logits) -> FactoredLogits:
        """Flatten `logits`; raises TypeError if a term is none of the forms that mix."""
        factored = cls()
        factored._add(logits, None)
        return factored

    def _add(self, logits: Logits, weight: Tensor | None) -> None:
        """Add weight · logits; weight is (H or 1,) or None for 1."""
        if isinstance(logits, SharedLogits):
            if self.shared is None:
                self.shared, self.shared_weight = logits.scores, weight
                return
            scores = logits.scores if weight is None else logits.scores * weight[:, None, None]
            self.shared, self.shared_weight = without_overflow(self.weighted_shared()) + scores, None
        elif isinstance(logits, InnerLogits):
            query, bias, scale = logits.query, logits.bias, logits.scale
            if weight is not None:
                query, scale = query * (weight * scale)[:, None, None].to(query.dtype), 1.0
                bias = None if bias is None else bias * weight[:, None]
            self.inner += (InnerLogits(query, repeat_heads(logits.key, query.shape[1]), scale=scale),)
            if bias is not None:
                self.bias = bias if self.bias is None else self.bias + bias
        elif isinstance(logits, OuterLogits):
            tiled = logits.tiled if weight is None else logits.tiled * weight[:, None, None].to(logits.tiled.dtype)
            self.outer += (OuterLogits(tiled, logits.repeated),)
        elif isinstance(logits, MixedLogits):
            for i, term in enumerate(logits.terms):
                own = None if logits.weights is None else logits.weights[i]
                self._add(term, own if weight is None else weight if own is None else own * weight)
        else:
            raise TypeError(f"got {type(logits).__name__} in a mixture; expected one of the other forms of logits")

    def weighted_shared(self) -> Tensor:
        """The shared scores, multiplied by their weight."""
        assert self.shared is not None
        return self.shared if self.shared_weight is None else self.shared * self.shared_weight[:, None, None]

    def joined(self) -> InnerLogits:
        """The inner terms as one, their widths side by side."""
        if len(self.inner) == 1:
            (term,) = self.inner
            return InnerLogits(term.query, term.key, self.bias, scale=term.scale)
        batch = max(term.key.shape[0] for term in self.inner)
        # Concatenation promotes the dtypes.
        query = torch.cat([term.scaled_query for term in self.inner], dim=-1)
        key = torch.cat([term.key.expand(batch, -1, -1, -1) for term in self.inner], dim=-1)
        return InnerLogits(query, key, self.bias)
