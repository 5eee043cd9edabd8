"""S(X)_ij = A_i[j mod a] · B_i[j div a]: dense logits from two short ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import linear
from ..logits import Logits, OuterLogits, Positions, SharedLogits
from .base import Dimensions, SynthesizingFunction, reset_map, resize
from .registry import register


@register("factorized_dense")
class FactorizedDense(SynthesizingFunction):
    """The Factorized Dense Synthesizer: one hidden layer relu(W₁x + b₁) with two outputs, d→a and d→b.

    One factor is tiled, the other repeated, so that the a·b products of a row are all different. W₁ is `q_proj`.

    Args:
        a: width of the tiled factor; by default ⌈√N⌉. The repeated one has b = ⌈N / a⌉.
    """

    num_features = 1
    per_position = {"weight": (1,), "bias": (1,)}  # noqa: RUF012
    length_options = ("a",)

    def __init__(self, dims: Dimensions, *, a: int | None = None) -> None:
        super().__init__()
        self.max_length = dims.length
        self.a = math.isqrt(dims.length - 1) + 1 if a is None else a
        self.factors = self.a, math.ceil(dims.length / self.a)
        total = sum(self.factors)
        # Rows [: a] make the tiled factor, the others the repeated one.
        self.weight = dims.parameter(dims.num_heads, total, dims.head_dim)
        self.bias = dims.parameter(dims.num_heads, total) if dims.bias else None
        self.reset_parameters()
        self.q_proj = dims.projection()

    def reset_parameters(self) -> None:
        reset_map(self.weight, self.bias)

    @torch.no_grad()
    def zero_logits(self) -> None:
        # The tiled factor only: with both at zero there would be no gradient.
        self.weight[:, : self.a] = 0
        if self.bias is not None:
            self.bias[:, : self.a] = 0

    def extend(self, max_length: int) -> None:
        self.max_length, self.factors = max_length, (self.a, math.ceil(max_length / self.a))
        resize(self, self.per_position, sum(self.factors), self.reset_parameters)

    def project(self, x: Tensor) -> Sequence[Tensor]:
        return (linear(self.q_proj, x),)

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> Logits:
        factors = features[0].relu() @ self.weight.mT
        if self.bias is not None:
            factors = factors + self.bias[:, None].to(factors.dtype)
        logits = OuterLogits(*factors.split(self.factors, dim=-1))
        if positions.key_index is None:
            return logits
        return SharedLogits(positions.take_columns(logits.dense()))
