"""S(X)_i = W₂ relu(W₁ X_i + b₁) + b₂: a row of logits from its own token alone."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..kernels import linear
from ..logits import InnerLogits, Logits, Positions, SharedLogits, leading
from .base import Dimensions, SynthesizingFunction, reset_map
from .registry import register


@register("dense")
class Dense(SynthesizingFunction):
    """The Dense Synthesizer: an inner product of relu(W₁x + b₁) with learned keys.

    W₁ (d→d) is `q_proj`, W₂ (d_head→N in each head) is `key`, and b₂ is `key_bias`.

    Args:
        share_heads: one W₂ (and b₂) for all heads, as in the authors' code; the paper's is one per head.
        bias: b₂; by default where the layer's projections have biases. (b₁ is the bias of q_proj.)
    """

    num_features = 1
    per_position = {"key": (1,), "key_bias": (1,)}  # noqa: RUF012
    logit_factor = ("key", "key_bias")
    near_zero = ("key_bias",)

    def __init__(self, dims: Dimensions, *, share_heads: bool = False, bias: bool | None = None) -> None:
        super().__init__()
        self.num_heads, self.max_length = dims.num_heads, dims.length
        heads = 1 if share_heads else dims.num_heads
        with_bias = dims.bias if bias is None else bias
        self.key = dims.parameter(heads, dims.length, dims.head_dim)
        self.key_bias = dims.parameter(heads, dims.length) if with_bias else None
        self.reset_parameters()
        self.q_proj = dims.projection()

    def reset_parameters(self) -> None:
        reset_map(self.key, self.key_bias)

    def project(self, x: Tensor) -> Sequence[Tensor]:
        return (linear(self.q_proj, x),)

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> Logits:
        key = leading(self.key, positions.columns, 1)[None].expand(-1, self.num_heads, -1, -1)
        bias: Tensor | None = self.key_bias
        if bias is not None:
            bias = leading(bias, positions.columns, 1).expand(self.num_heads, -1)
        logits = InnerLogits(features[0].relu(), key, bias)
        if positions.key_index is None:
            return logits
        return SharedLogits(positions.take_columns(logits.dense()))
