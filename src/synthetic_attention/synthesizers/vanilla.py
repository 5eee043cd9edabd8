"""S(X) = (X W_Q)(X W_K)ᵀ / √d_head: dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..kernels import linear
from ..logits import InnerLogits, Positions
from .base import Dimensions, SynthesizingFunction
from .registry import register


@register("vanilla")
class Vanilla(SynthesizingFunction):
    """Scaled dot-product attention; has no maximum length, and is the only function that caches keys.

    As the dimensions say, heads share keys, queries and keys are normalized, and turned by their positions.
    """

    caches_keys = True
    num_features = 2

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.scale, self.key_heads, self.rotary = dims.head_dim**-0.5, dims.key_value_heads, dims.rotary
        self.q_proj = dims.projection()
        self.k_proj = dims.projection(dims.key_value_heads)
        self.q_norm: nn.RMSNorm | None = None
        self.k_norm: nn.RMSNorm | None = None
        if dims.qk_norm is not None:
            self.q_norm, self.k_norm = (
                nn.RMSNorm(dims.head_dim, dims.qk_norm, device=dims.device, dtype=dims.dtype) for _ in range(2)
            )

    def reset_parameters(self) -> None:
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.reset_parameters()

    def project(self, x: Tensor) -> Sequence[Tensor]:
        return self.normalize(linear(self.q_proj, x), self.q_norm), self.normalize(linear(self.k_proj, x), self.k_norm)

    def normalize(self, x: Tensor, norm: nn.RMSNorm | None) -> Tensor:
        """Apply a norm to each head of x (…, H·K)."""
        return x if norm is None else norm(x.unflatten(-1, (-1, *norm.normalized_shape))).flatten(-2)

    def keys(self, features: Sequence[Tensor], positions: Positions) -> Tensor:
        return self._rotate(features[1], positions)

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> InnerLogits:
        assert keys is not None
        return InnerLogits(self._rotate(features[0], positions), keys, scale=self.scale)

    def _rotate(self, x: Tensor, positions: Positions) -> Tensor:
        return x if self.rotary is None else self.rotary(x, positions)
