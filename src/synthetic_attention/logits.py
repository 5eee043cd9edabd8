"""Attention logits in factored form, from a synthesizing function to `attend`.

Shape legend: B batch, H heads, T queries (rows), S keys (columns), K width of a query, a·b ≥ S outer factors.
No form stores an (B, H, T, S) matrix unless it is handed one; `dense` builds it, for tests, plots and weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FactoredLogits", "InnerLogits", "Logits", "MixedLogits", "OuterLogits", "SharedLogits"]


def _check(condition: bool, got: str, expected: str) -> None:
    if not condition:
        raise ValueError(f"got {got}; expected {expected}")


class Logits:
    """Attention logits (B, H, T, S), held as factors."""

    def dense(self, length: int | None = None) -> Tensor:
        """The logits as one tensor, (H, T, S) where all examples share them, else (B, H, T, S).

        Args:
            length: number of keys S; by default as many as the form has.
        """
        raise TypeError(f"{type(self).__name__} is not a form of logits: subclass it and define dense()")


class SharedLogits(Logits):
    """The same scores for every example: random, fixed random, factorized random.

    Args:
        scores: (H, T, S); (B, H, T, S) only where positions differ by example (decoding a left-padded batch). `attend`
            takes 1 for H or B too.

    Raises:
        ValueError: scores are neither 3- nor 4-dimensional.
    """

    def __init__(self, scores: Tensor) -> None:
        _check(scores.dim() in (3, 4), f"scores of shape {tuple(scores.shape)}", "(H, T, S) or (B, H, T, S)")
        self._scores = scores

    @classmethod
    def from_bias(cls, bias: Tensor, batch: int, heads: int, rows: int, columns: int) -> SharedLogits:
        """An additive bias on the logits, as scores of all heads; (B, H, T, S) where it differs by example.

        Args:
            bias: floats, (T, S), (H or 1, T, S) or (B or 1, H or 1, T, S).

        Raises:
            ValueError: it has another dtype or shape.
        """
        if not bias.is_floating_point():
            raise ValueError(
                f"got attn_bias of dtype {bias.dtype}; expected floats that are added to the logits: 0 where a key may "
                "be seen, -inf where it may not"
            )
        leading = ((batch, 1), (heads, 1))[4 - bias.dim() :] if 2 < bias.dim() <= 4 else ()
        fits = 2 <= bias.dim() <= 4 and tuple(bias.shape[-2:]) == (rows, columns)
        if not fits or any(size not in known for size, known in zip(bias.shape, leading, strict=False)):
            raise ValueError(
                f"got attn_bias of shape {tuple(bias.shape)}; expected (T, S), (H, T, S) or (B, H, T, S) with B = "
                f"{batch}, H = {heads} (or 1 for either), T = {rows}, S = {columns}"
            )
        if bias.dim() < 4 or bias.shape[0] == 1:
            return cls(bias.reshape(-1, rows, columns).expand(heads, -1, -1))
        return cls(bias.expand(-1, heads, -1, -1))

    @property
    def scores(self) -> Tensor:
        return self._scores

    def dense(self, length: int | None = None) -> Tensor:
        return self.scores if length is None else self.scores[..., :length]


class InnerLogits(Logits):
    """scale · query · keyᵀ + bias: dot-product attention, and dense with a learned key (Table 1 of the paper).

    Args:
        query: (B, H, T, K).
        key: (B, H, S, K), or (1, H, S, K) where it is a parameter.
        bias: (H, S), added to every row, or None.
        scale: a number the product is multiplied by.

    Raises:
        ValueError: the shapes do not fit together.
    """

    def __init__(self, query: Tensor, key: Tensor, bias: Tensor | None = None, *, scale: float = 1.0) -> None:
        _check(query.dim() == 4, f"query of shape {tuple(query.shape)}", "(B, H, T, K)")
        fits = key.dim() == 4 and key.shape[0] in (1, query.shape[0])
        fits = fits and key.shape[1] == query.shape[1] and key.shape[3] == query.shape[3]
        _check(
            fits,
            f"query {tuple(query.shape)} with key {tuple(key.shape)}",
            "key (B or 1, H, S, K) with the query's H and K",
        )
        if bias is not None:
            expected = (key.shape[1], key.shape[2])
            _check(tuple(bias.shape) == expected, f"bias {tuple(bias.shape)}", f"(H, S) = {expected}")
        self.query, self.key, self.bias, self.scale = query, key, bias, scale

    def dense(self, length: int | None = None) -> Tensor:
        query = self.query if self.scale == 1.0 else self.query * self.scale
        key, bias = self.key[:, :, :length].mT, None if self.bias is None else self.bias[:, None, :length]
        if key.shape[0] != 1 or query.shape[0] == 1:
            logits = query @ key
            return logits if bias is None else logits + bias
        # All examples of a head in one product: a broadcast key would be copied for each.
        batch, _, rows, _ = query.shape
        tokens = query.transpose(0, 1).flatten(1, 2)
        if bias is not None and bias.dtype == tokens.dtype:
            product = torch.baddbmm(bias, tokens, key[0])
        else:
            product = tokens @ key[0] if bias is None else tokens @ key[0] + bias
        return product.unflatten(1, (batch, rows)).transpose(0, 1)


class OuterLogits(Logits):
    """Column j is tiled[j mod a] · repeated[j div a]: factorized dense.

    Args:
        tiled: (B, H, T, a).
        repeated: (B, H, T, b); S is the first S ≤ a·b columns.

    Raises:
        ValueError: the shapes do not fit together.
    """

    def __init__(self, tiled: Tensor, repeated: Tensor) -> None:
        fits = tiled.dim() == 4 and repeated.dim() == 4 and tiled.shape[:3] == repeated.shape[:3]
        _check(
            fits,
            f"tiled {tuple(tiled.shape)} with repeated {tuple(repeated.shape)}",
            "(B, H, T, a) and (B, H, T, b)",
        )
        self.tiled, self.repeated = tiled, repeated

    def dense(self, length: int | None = None) -> Tensor:
        columns = self.tiled.shape[-1] * self.repeated.shape[-1]
        if length is not None:
            _check(length <= columns, f"length {length}", f"at most a·b = {columns}")
        product = self.repeated.unsqueeze(-1) * self.tiled.unsqueeze(-2)
        return product.flatten(-2)[..., :length]


class MixedLogits(Logits):
    """Σ weights[i, h] · terms[i], mixed inside ONE softmax.

    Args:
        terms: at least one form of logits (mixtures may nest).
        weights: (terms, H), or (terms, 1) for one weight in all heads; None is the plain sum.

    Raises:
        ValueError: no terms, or a weight for another number of terms.
    """

    def __init__(self, terms: Sequence[Logits], weights: Tensor | None = None) -> None:
        _check(len(terms) > 0, "no terms", "at least one form of logits")
        if weights is not None:
            fits = weights.dim() == 2 and weights.shape[0] == len(terms)
            _check(fits, f"weights {tuple(weights.shape)}", f"(terms, H) with terms = {len(terms)}")
        self.terms, self.weights = tuple(terms), weights

    def dense(self, length: int | None = None) -> Tensor:
        dense = [term.dense(length) for term in self.terms]
        columns = min(term.shape[-1] for term in dense)
        total: Tensor | None = None
        for i, term in enumerate(dense):
            term = term[..., :columns]
            if self.weights is not None:
                term = term * self.weights[i, :, None, None]
            total = term if total is None else total + term
        assert total is not None
        return total


@dataclass
class FactoredLogits:
    """Any logits as at most one shared term, some inner and some outer ones, the weights folded into the cheap factor.

    Attributes:
        shared: (H, T, S) or (B, H, T, S), or None.
        shared_weight: (H,) or (1,), a factor not yet applied to it (this saves a copy of H·T·S), or None for 1.
        bias: (H, S), the sum of the biases of the inner terms, or None.
        inner: without biases.
        outer: pairs of tiled (B, H, T, a) and repeated (B, H, T, b).
    """

    shared: Tensor | None = None
    shared_weight: Tensor | None = None
    bias: Tensor | None = None
    inner: tuple[InnerLogits, ...] = ()
    outer: tuple[OuterLogits, ...] = ()

    @classmethod
    def of(cls, logits: Logits) -> FactoredLogits:
        """Flatten `logits`.

        Raises:
            TypeError: a term is not one of the four forms.
        """
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
            self.shared, self.shared_weight = self.weighted_shared() + scores, None
        elif isinstance(logits, InnerLogits):
            self._add_inner(logits, weight)
        elif isinstance(logits, OuterLogits):
            tiled = logits.tiled if weight is None else logits.tiled * weight[:, None, None].to(logits.tiled.dtype)
            self.outer += (OuterLogits(tiled, logits.repeated),)
        elif isinstance(logits, MixedLogits):
            for i, term in enumerate(logits.terms):
                own = None if logits.weights is None else logits.weights[i]
                self._add(term, own if weight is None else weight if own is None else own * weight)
        else:
            raise TypeError(f"got {type(logits).__name__}; expected one of the four forms of logits")

    def weighted_shared(self) -> Tensor:
        """The shared scores, multiplied by their weight."""
        assert self.shared is not None
        return self.shared if self.shared_weight is None else self.shared * self.shared_weight[:, None, None]

    def _add_inner(self, term: InnerLogits, weight: Tensor | None) -> None:
        query, bias, scale = term.query, term.bias, term.scale
        if weight is not None:
            query, scale = query * (weight * scale)[:, None, None].to(query.dtype), 1.0
            bias = None if bias is None else bias * weight[:, None]
        self.inner += (InnerLogits(query, term.key, scale=scale),)
        if bias is not None:
            self.bias = bias if self.bias is None else self.bias + bias

    def joined(self) -> InnerLogits:
        """The inner terms as one, their widths side by side."""
        if len(self.inner) == 1:
            (term,) = self.inner
            return InnerLogits(term.query, term.key, self.bias, scale=term.scale)
        batch = max(term.key.shape[0] for term in self.inner)
        queries = [term.query if term.scale == 1.0 else term.query * term.scale for term in self.inner]
        keys = [term.key.expand(batch, -1, -1, -1) for term in self.inner]
        return InnerLogits(_side_by_side(queries), _side_by_side(keys), self.bias)


def _side_by_side(factors: Sequence[Tensor]) -> Tensor:
    dtype = factors[0].dtype
    for factor in factors[1:]:
        dtype = torch.promote_types(dtype, factor.dtype)
    return torch.cat([factor.to(dtype) for factor in factors], dim=-1)
