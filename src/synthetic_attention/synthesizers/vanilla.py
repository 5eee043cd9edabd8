"""S(X) = (X W_Q)(X W_K)ᵀ / √d_head: dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..kernels import linear
from ..layout import Positions
from ..logits import InnerLogits
from .base import Dimensions, SynthesizingFunction
from .registry import Options, register


@register("vanilla")
class Vanilla(SynthesizingFunction):
    """Scaled dot-product attention; has no maximum length, and is the only function that caches keys."""

    caches_keys = True
    num_features = 2

    def __init__(self, dims: Dimensions, options: Options) -> None:
        super().__init__()
        self.scale, self.key_heads = dims.head_dim**-0.5, dims.num_heads
        self.q_proj = dims.projection()
        self.k_proj = dims.projection()

    def project(self, x: Tensor) -> Sequence[Tensor]:
        return linear(self.q_proj, x), linear(self.k_proj, x)

    def keys(self, features: Sequence[Tensor]) -> Tensor:
        return features[1]

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> InnerLogits:
        assert keys is not None
        return InnerLogits(features[0], keys, scale=self.scale)
