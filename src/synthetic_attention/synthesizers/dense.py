"""S(X)_i = W₂ relu(W₁ X_i + b₁) + b₂: a row of logits from its own token alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..logits import InnerLogits, SharedLogits
from .base import Dimensions, Options, Span, SynthesizingFunction, empty, flag, register, reset_map, split_heads


@dataclass(frozen=True, kw_only=True)
class DenseOptions(Options):
    """Options of `dense`.

    Attributes:
        share_heads: one W₂ (and b₂) for all heads, as in the authors' code; the paper's is one per head.
        bias: b₂; by default there where the layer's projections have biases. (b₁ is one of those.)
    """

    share_heads: bool = False
    bias: bool | None = None

    def __post_init__(self) -> None:
        flag(self.share_heads, "share_heads", "dense")
        if self.bias is not None:
            flag(self.bias, "bias", "dense")


@register("dense")
class Dense(SynthesizingFunction):
    """The Dense Synthesizer. W₁ (d→d) is part of the layer's projection; W₂ is d_head→N in each head.

    As logits it is an inner product with learned keys: query = relu(W₁x + b₁), key = W₂, key bias = b₂.
    """

    Options = DenseOptions

    def __init__(
        self,
        dims: Dimensions,
        options: DenseOptions,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        assert dims.max_length is not None
        self.num_heads, self.max_length, self.widths = dims.num_heads, dims.max_length, (dims.inner_dim,)
        heads = 1 if options.share_heads else dims.num_heads
        with_bias = dims.bias if options.bias is None else options.bias
        self.weight = empty(heads, dims.max_length, dims.head_dim, device=device, dtype=dtype)
        self.bias = empty(heads, dims.max_length, device=device, dtype=dtype) if with_bias else None
        self.constant_feature = with_bias
        self.reset_parameters()

    def logit_parameters(self) -> list[nn.Parameter]:
        return [] if self.bias is None else [self.bias]

    def reset_parameters(self) -> None:
        reset_map(self.weight, self.bias)

    def forward(self, inputs: Sequence[Tensor], span: Span, keys: Tensor | None) -> InnerLogits | SharedLogits:
        (hidden,) = inputs
        query = split_heads(hidden, self.num_heads).relu()
        key = self.weight[None, :, : span.columns].expand(-1, self.num_heads, -1, -1)
        bias = None if self.bias is None else self.bias[:, : span.columns].expand(self.num_heads, -1)
        if bias is not None and query.shape[-1] > key.shape[-1]:
            # The query brings a 1 with it.
            return InnerLogits(query, torch.cat([key, bias[None, :, :, None].to(key.dtype)], dim=-1))
        logits = InnerLogits(query, key, bias)
        if span.key_positions is None:
            return logits
        return SharedLogits(span.take_columns(logits.dense()))
