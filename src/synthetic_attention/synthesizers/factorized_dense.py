"""S(X)_ij = A_i[j mod a] · B_i[j div a]: dense logits from two short ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..kernels import linear
from ..layout import Positions
from ..logits import OuterLogits, SharedLogits
from .base import Dimensions, SynthesizingFunction, reset_map
from .registry import Options, register


@dataclass(frozen=True, kw_only=True)
class FactorizedDenseOptions(Options):
    """Options of `factorized_dense`.

    Attributes:
        a: width of the tiled factor; by default ⌈√N⌉.
        b: width of the repeated factor; by default ⌈N / a⌉.
        bias: biases of both factors; by default where the layer's projections have biases.
    """

    a: int | None = None
    b: int | None = None
    bias: bool | None = None

    def check(self, components: int, max_length: int | None) -> None:
        if max_length is not None:
            self.widths(max_length)

    def widths(self, max_length: int) -> tuple[int, int]:
        """a and b.

        Raises:
            ValueError: a·b is less than the maximum length.
        """
        a, b = self.a, self.b
        if a is None:
            a = math.isqrt(max_length - 1) + 1 if b is None else math.ceil(max_length / b)
        if b is None:
            b = math.ceil(max_length / a)
        if a * b < max_length:
            raise ValueError(
                f"got a={a}, b={b} for 'factorized_dense'; expected a·b of at least the maximum length {max_length}. "
                "Leave one of them out to have it chosen"
            )
        return a, b


@register("factorized_dense")
class FactorizedDense(SynthesizingFunction):
    """The Factorized Dense Synthesizer: one hidden layer relu(W₁x + b₁) with two outputs, d→a and d→b.

    One factor is tiled, the other repeated, so that the a·b products of a row are all different. W₁ is `q_proj`.
    """

    Options = FactorizedDenseOptions
    num_features = 1

    def __init__(self, dims: Dimensions, options: FactorizedDenseOptions) -> None:
        super().__init__()
        assert dims.max_length is not None
        self.max_length = dims.max_length
        self.factors = options.widths(dims.max_length)
        with_bias = dims.bias if options.bias is None else options.bias
        total = sum(self.factors)
        # Rows [: a] make the tiled factor, the others the repeated one.
        self.weight = dims.parameter(dims.num_heads, total, dims.head_dim)
        self.bias = dims.parameter(dims.num_heads, total) if with_bias else None
        self.reset_parameters()
        self.q_proj = dims.projection()

    def reset_parameters(self) -> None:
        reset_map(self.weight, self.bias)

    def project(self, x: Tensor) -> Sequence[Tensor]:
        return (linear(self.q_proj, x),)

    def forward(
        self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None
    ) -> OuterLogits | SharedLogits:
        factors = features[0].relu() @ self.weight.mT
        if self.bias is not None:
            factors = factors + self.bias[:, None].to(factors.dtype)
        logits = OuterLogits(*factors.split(self.factors, dim=-1))
        if positions.key_index is None:
            return logits
        return SharedLogits(positions.take_columns(logits.dense()))
