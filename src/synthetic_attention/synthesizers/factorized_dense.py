"""S(X)_ij = A_i[j mod a] · B_i[j div a]: dense logits from two short ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..logits import OuterLogits, SharedLogits
from .base import Dimensions, Options, Span, SynthesizingFunction, empty, flag, register, reset_map, split_heads, whole


@dataclass(frozen=True, kw_only=True)
class FactorizedDenseOptions(Options):
    """Options of `factorized_dense`.

    Attributes:
        a: width of the tiled factor; by default ⌈√N⌉.
        b: width of the repeated factor; by default ⌈N / a⌉.
        bias: biases of both factors; by default there where the layer's projections have biases.
    """

    a: int | None = None
    b: int | None = None
    bias: bool | None = None

    def __post_init__(self) -> None:
        for option, value in (("a", self.a), ("b", self.b)):
            if value is not None:
                whole(value, option, "factorized_dense")
        if self.bias is not None:
            flag(self.bias, "bias", "factorized_dense")

    def check(self, components: int, max_length: int | None) -> None:
        if max_length is not None:
            self.widths(max_length)

    def widths(self, max_length: int) -> tuple[int, int]:
        """a and b.

        Raises:
            ValueError: a·b is less than the maximum length.
        """
        a = (
            self.a
            if self.a is not None
            else math.ceil(max_length / self.b)
            if self.b
            else math.isqrt(max_length - 1) + 1
        )
        b = self.b if self.b is not None else math.ceil(max_length / a)
        if a * b < max_length:
            raise ValueError(
                f"got a={a}, b={b} for 'factorized_dense'; expected a·b of at least the maximum length {max_length}. "
                "Leave one of them out to have it chosen"
            )
        return a, b


@register("factorized_dense")
class FactorizedDense(SynthesizingFunction):
    """The Factorized Dense Synthesizer: one hidden layer relu(W₁x + b₁), with two heads on it, d→a and d→b.

    One factor is tiled, the other repeated, so that the a·b products of a row are all different.
    """

    Options = FactorizedDenseOptions

    def __init__(
        self,
        dims: Dimensions,
        options: FactorizedDenseOptions,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        assert dims.max_length is not None
        self.num_heads, self.max_length, self.widths = dims.num_heads, dims.max_length, (dims.inner_dim,)
        self.factors = options.widths(dims.max_length)
        with_bias = dims.bias if options.bias is None else options.bias
        total = sum(self.factors)
        # Rows [: a] make the tiled factor, the others the repeated one.
        self.weight = empty(dims.num_heads, total, dims.head_dim, device=device, dtype=dtype)
        self.bias = empty(dims.num_heads, total, device=device, dtype=dtype) if with_bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset_map(self.weight, self.bias)

    def forward(self, inputs: Sequence[Tensor], span: Span, keys: Tensor | None) -> OuterLogits | SharedLogits:
        (hidden,) = inputs
        factors = split_heads(hidden, self.num_heads).relu() @ self.weight.mT
        if self.bias is not None:
            factors = factors + self.bias[:, None].to(factors.dtype)
        tiled, repeated = factors.split(self.factors, dim=-1)
        logits = OuterLogits(tiled, repeated)
        if span.key_positions is None:
            return logits
        return SharedLogits(span.take_columns(logits.dense()))
