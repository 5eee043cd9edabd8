"""Linformer (Wang et al., "Linformer: Self-Attention with Linear Complexity", arXiv 2006.04768).

softmax(Q (E K)ᵀ / √d_head) F V: keys and values are projected from the S tokens to k of their sums, so that the logits
are (T, k). E and F are parameters, k × N, the same for all heads of a layer (the paper's headwise sharing). Each sum is
over the whole sequence, so nothing here can be causal.

Shape legend: B batch, H heads, L tokens, N maximum length, k sums (`rank`), K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..kernels import attend, attention_weights, linear, split_heads
from ..layout import TokenLayout
from ..logits import InnerLogits, leading
from ..synthesizers import Dimensions, register, resize
from .base import Baseline, Sum


@register("linformer")
class Linformer(Baseline):
    """Linformer's attention, for encoders: 4·d² parameters as vanilla attention has, and k·N for each of E and F.

    Args:
        rank: k; by default a quarter of the maximum length, at least 1.
        std: standard deviation of the normal distribution that E and F start from; by default 1 / √k, as in the
            projections of Johnson and Lindenstrauss that the paper starts from (others: docs/results.md).
    """

    can_be_causal = False
    per_position = {"key_sums": (2,), "value_sums": (2,)}  # noqa: RUF012
    length_options = ("rank",)

    def __init__(
        self,
        dims: Dimensions,
        dropout: float = 0.0,
        layer_idx: int | None = None,
        *,
        rank: int | None = None,
        std: float | None = None,
    ) -> None:
        super().__init__(dims, dropout, layer_idx)
        self.max_length = dims.length
        self.rank = max(1, dims.length // 4) if rank is None else rank
        self.std = self.rank**-0.5 if std is None else std
        self.q_proj, self.k_proj = dims.projection(), dims.projection()
        self.key_sums = dims.parameter(1, self.rank, dims.length)
        self.value_sums = dims.parameter(1, self.rank, dims.length)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._reset_sums()

    def _reset_sums(self) -> None:
        nn.init.normal_(self.key_sums, std=self.std)
        nn.init.normal_(self.value_sums, std=self.std)

    def extend(self, max_length: int) -> None:
        super().extend(max_length)
        resize(self, self.per_position, max_length, self._reset_sums)
        self.max_length = max_length

    def _read(self, tokens: Tensor) -> Sequence[Tensor]:
        return linear(self.v_proj, tokens), linear(self.q_proj, tokens), linear(self.k_proj, tokens)

    def _sum(self, value: Tensor, parts: list[Tensor], layout: TokenLayout, is_causal: bool, need_weights: bool) -> Sum:
        query, key = (split_heads(part, self.num_heads) for part in parts)
        key_sums, value_sums = (leading(sums[0], value.shape[2], 1) for sums in (self.key_sums, self.value_sums))
        logits = InnerLogits(query, _summed(key_sums, key), scale=self.head_dim**-0.5)
        y = attend(logits, _summed(value_sums, value), dropout_p=self.dropout if self.training else 0.0)
        if not need_weights:
            return y, None
        weights = attention_weights(logits)
        return y, weights @ value_sums.to(weights.dtype)


def _summed(sums: Tensor, x: Tensor) -> Tensor:
    """(k, L) × (B, H, L, K) = (B, H, k, K), as one product: a broadcast matrix would be copied for each head."""
    product = sums @ x.permute(2, 0, 1, 3).flatten(1)
    return product.unflatten(1, (x.shape[0], x.shape[1], x.shape[3])).permute(1, 2, 0, 3)
