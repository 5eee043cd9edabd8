"""Linformer (Wang et al., "Linformer: Self-Attention with Linear Complexity", arXiv 2006.04768).

softmax(Q (E K)ᵀ / √d_head) F V: keys and values are projected from the S tokens to k of their sums, so that the logits
are (T, k). E and F are parameters, k × N. Each sum is over the whole sequence, so nothing here can be causal.

Shape legend: B batch, H heads, L tokens, N maximum length, k sums (`rank`), K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from ..kernels import attend, attention_weights
from ..logits import InnerLogits
from ..synthesizers.base import Options, empty, split_heads, whole
from .base import Baseline, register

__all__ = ["Linformer"]

_SHARING = ("none", "heads", "keys_and_values")


@dataclass(frozen=True, kw_only=True)
class LinformerOptions(Options):
    """Options of `linformer`.

    Attributes:
        rank: k; by default a quarter of the maximum length, at least 1.
        sharing: "none", each head has its own E and F (the paper's equation 7); "heads", all heads of a layer have the
            same E and the same F (its headwise sharing); "keys_and_values", E = F too (its key-value sharing).
    """

    rank: int | None = None
    sharing: str = "heads"

    def __post_init__(self) -> None:
        if self.rank is not None:
            whole(self.rank, "rank", "linformer")
        if self.sharing not in _SHARING:
            raise ValueError(f"got sharing={self.sharing!r} for 'linformer'; expected one of: {', '.join(_SHARING)}")

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
        super().__init__(3, d_model, num_heads, **arguments)
        if max_length is None or max_length < 1:
            raise ValueError(f"got max_length={max_length} for 'linformer'; expected the longest sequence it will see")
        options = options or LinformerOptions()
        options.check(1, max_length)
        self.max_length = max_length
        self.rank = max(1, max_length // 4) if options.rank is None else options.rank
        shape = (num_heads if options.sharing == "none" else 1, self.rank, max_length)
        place = {"device": self.out_proj.weight.device, "dtype": self.out_proj.weight.dtype}
        self.key_sums = empty(*shape, **cast(Any, place))
        own = options.sharing != "keys_and_values"
        self.value_sums = empty(*shape, **cast(Any, place)) if own else None
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

    @property
    def weight_parameters(self) -> int:
        rows = self.in_proj.out_features * 2 // 3
        sums = self.key_sums.numel() + (0 if self.value_sums is None else self.value_sums.numel())
        return rows * (self.in_proj.in_features + (self.in_proj.bias is not None)) + sums

    def _read(self, x: Tensor) -> Sequence[Tensor]:
        return self.in_proj(x).chunk(3, dim=-1)

    def _sum(
        self, read: Sequence[Tensor], mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        value, query, key = (split_heads(part, self.num_heads) for part in read)
        length = value.shape[2]
        if is_causal:
            raise ValueError("got is_causal=True for 'linformer'; expected False: its keys are sums over all tokens")
        if length > cast(int, self.max_length):
            raise ValueError(
                f"got a sequence of {length} slots; expected at most max_length = {self.max_length}, up to which "
                "'linformer' has parameters. Truncate or split the input, or build the layer with a larger max_length"
            )
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
    # One product for all heads and examples: a broadcast matrix would be copied, and its gradient kept, for each.
    product = sums[0] @ x.permute(2, 0, 1, 3).flatten(1)
    return product.unflatten(1, (x.shape[0], x.shape[1], x.shape[3])).permute(1, 2, 0, 3)
