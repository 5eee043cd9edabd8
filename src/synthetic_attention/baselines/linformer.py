"""Linformer (Wang et al., "Linformer: Self-Attention with Linear Complexity", arXiv 2006.04768).

softmax(Q (E K)ᵀ / √d_head) F V: keys and values are projected from the S tokens to k of their sums, so that the logits
are (T, k). E and F are parameters, k × N. Each sum is over the whole sequence, so nothing here can be causal.

Shape legend: B batch, H heads, L tokens, N maximum length, k sums (`rank`), K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from ..kernels import attend, attention_weights, split_heads
from ..layout import TokenLayout
from ..logits import InnerLogits
from ..synthesizers import Options, register
from .base import Baseline

__all__ = ["Linformer"]


@dataclass(frozen=True, kw_only=True)
class LinformerOptions(Options):
    """Options of `linformer`.

    Attributes:
        rank: k; by default a quarter of the maximum length, at least 1.
        sharing: "none", each head has its own E and F (the paper's equation 7); "heads", all heads of a layer have the
            same E and the same F (its headwise sharing); "keys_and_values", E = F too (its key-value sharing).
    """

    rank: int | None = None
    sharing: Literal["none", "heads", "keys_and_values"] = "heads"

    def check(self, components: int, max_length: int | None) -> None:
        if self.rank is not None and max_length is not None and self.rank > max_length:
            raise ValueError(f"got rank={self.rank} for 'linformer'; expected at most the maximum length, {max_length}")


@register("linformer")
class Linformer(Baseline):
    """Linformer's attention: for encoders.

    4·d² parameters as vanilla attention has, and k·N for each E and F.

    Raises:
        ValueError: no maximum length, or a rank over it.
    """

    Options = LinformerOptions
    can_be_causal = False
    has_shares = False
    needs_max_length = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        max_length: int | None = None,
        *,
        options: LinformerOptions | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(d_model, num_heads, max_length, **arguments)
        if max_length is None:
            raise ValueError("got no max_length for 'linformer'; expected the longest sequence it will see")
        options = options or LinformerOptions()
        options.check(1, max_length)
        self.q_proj, self.k_proj = self.dims.projection(), self.dims.projection()
        self._reset_projections()
        self.max_length = max_length
        self.rank = max(1, max_length // 4) if options.rank is None else options.rank
        shape = (num_heads if options.sharing == "none" else 1, self.rank, max_length)
        self.key_sums = self.dims.parameter(*shape)
        self.value_sums = None if options.sharing == "keys_and_values" else self.dims.parameter(*shape)
        self._reset_sums()

    def _reset_sums(self) -> None:
        # Variance 1/k, as that of the projections of Johnson and Lindenstrauss that the paper starts from.
        for sums in (self.key_sums, self.value_sums):
            if sums is not None:
                nn.init.normal_(sums, std=self.rank**-0.5)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._reset_sums()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, max_length={self.max_length}, rank={self.rank}"

    def _read(self, tokens: Tensor) -> Sequence[Tensor]:
        return self.v_proj(tokens), self.q_proj(tokens), self.k_proj(tokens)

    def _sum(
        self, value: Tensor, parts: Sequence[Tensor], layout: TokenLayout, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        query, key = (split_heads(part, self.num_heads) for part in parts)
        length = value.shape[2]
        both = (self.key_sums, self.key_sums if self.value_sums is None else self.value_sums)
        key_sums, value_sums = (sums[..., :length] for sums in both)
        logits = InnerLogits(query, _summed(key_sums, key), scale=self.head_dim**-0.5)
        y = attend(logits, _summed(value_sums, value), dropout_p=self.dropout if self.training else 0.0)
        if not need_weights:
            return y, None
        weights = attention_weights(logits)
        return y, weights @ value_sums.to(weights.dtype)


def _summed(sums: Tensor, x: Tensor) -> Tensor:
    """(H or 1, k, L) × (B, H, L, K) = (B, H, k, K)."""
    if sums.shape[0] > 1:
        return sums @ x
    # One product for all heads and examples: a broadcast matrix would be copied for each.
    product = sums[0] @ x.permute(2, 0, 1, 3).flatten(1)
    return product.unflatten(1, (x.shape[0], x.shape[1], x.shape[3])).permute(1, 2, 0, 3)
