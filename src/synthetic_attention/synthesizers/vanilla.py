"""S(X) = (X W_Q)(X W_K)ᵀ / √d_head: dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..logits import InnerLogits
from .base import Dimensions, Options, Span, SynthesizingFunction, register, split_heads


@register("vanilla")
class Vanilla(SynthesizingFunction):
    """Scaled dot-product attention; has no maximum length, and is the only function that caches keys."""

    needs_max_length = False
    caches_keys = True

    def __init__(
        self,
        dims: Dimensions,
        options: Options,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.scale = dims.num_heads, dims.head_dim**-0.5
        self.widths = (dims.inner_dim, dims.inner_dim)

    def keys(self, inputs: Sequence[Tensor]) -> Tensor:
        return split_heads(inputs[1], self.num_heads)

    def forward(self, inputs: Sequence[Tensor], span: Span, keys: Tensor | None) -> InnerLogits:
        assert keys is not None
        return InnerLogits(split_heads(inputs[0], self.num_heads), keys, scale=self.scale)
