"""Linformer (Wang et al., "Linformer: Self-Attention with Linear Complexity", arXiv 2006.04768).

softmax(Q (E K)ᵀ / √d_head) F V: keys and values are projected from the S tokens to k of their sums, so that the logits
are (T, k). E and F are parameters, k × N. Each sum is over the whole sequence, so nothing here can be causal.

Shape legend: B batch, H heads, L tokens, N maximum length, k sums (`rank`), K width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from ..functions.base import Options, empty, split_heads, whole
from ..kernels import attend, attention_weights
from ..logits import InnerLogits
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
    caches_keys = True

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

    def _sum(self, x: Tensor, mask: Tensor | None, is_causal: bool, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        length = x.shape[1]
        if is_causal:
            raise ValueError("got is_causal=True for 'linformer'; expected False: its keys are sums over all tokens")
        if length > cast(int, self.max_length):
            raise ValueError(
                f"got a sequence of {length} slots; expected at most max_length = {self.max_length}, up to which "
                "'linformer' has parameters. Truncate or split the input, or build the layer with a larger max_length"
            )
        value, query, key = (split_heads(part, self.num_heads) for part in self.in_proj(x).chunk(3, dim=-1))
        both = (self.key_sums, self.key_sums if self.value_sums is None else self.value_sums)
        key_sums, value_sums = (sums[..., :length] for sums in both)
        if mask is not None:
            key, value = (part * mask[:, None, :, None] for part in (key, value))
        logits = InnerLogits(query, key_sums @ key, scale=self.head_dim**-0.5)
        y = attend(logits, value_sums @ value, dropout_p=self.dropout if self.training else 0.0)
        projected: Tensor = self.out_proj(y.transpose(1, 2).flatten(2))
        return projected, attention_weights(logits) @ value_sums if need_weights else None
