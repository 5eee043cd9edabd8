"""S(X) = R: a parameter (random), drawn once (fixed random), or a product of low rank (factorized random)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from ..kernels import CachedLogits, SoftmaxCache
from ..logits import Positions, SharedLogits, leading, without_overflow
from .base import Dimensions, SynthesizingFunction
from .registry import register


@register("random")
class Random(SynthesizingFunction):
    """The Random Synthesizer: R (H, N, N), the same for all examples, is trained.

    Args:
        std: standard deviation of the normal distribution that R starts from. Small by default: attention starts as an
            average over all positions, and R has to be learned (about the authors' scale).
    """

    per_position = {"table": (1, 2)}  # noqa: RUF012
    logit_factor: ClassVar[tuple[str, ...]] = ("table",)
    near_zero: ClassVar[tuple[str, ...]] = ("table",)
    table: Tensor

    def __init__(self, dims: Dimensions, *, std: float = 0.003) -> None:
        super().__init__()
        self.max_length, self.std, self.cache = dims.length, std, SoftmaxCache()
        self.table = dims.parameter(dims.num_heads, dims.length, dims.length)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> CachedLogits:
        scores = positions.take(self.table)
        return CachedLogits(self.cache, positions, (scores,), lambda: scores)


@register("fixed_random")
class FixedRandom(Random):
    """The Fixed Random Synthesizer: R is saved with the model and never trained.

    Args:
        std: standard deviation of the normal distribution that R is drawn from, once. Large by default: a small one
            leaves all heads the same average over positions for ever.
    """

    logit_factor = near_zero = ()

    def __init__(self, dims: Dimensions, *, std: float = 1.0) -> None:
        super().__init__(dims, std=std)
        table = self.table.detach()
        del self.table
        self.register_buffer("table", table)


@register("factorized_random")
class FactorizedRandom(SynthesizingFunction):
    """The Factorized Random Synthesizer: 2Nk parameters in each head instead of N². Not the `factorized` mode of the
    authors' code, whose logits are the same for every query (a bug there).

    Args:
        rank: r, the width of R₁ and R₂ (the paper's k, 8).
        std: standard deviation of R₁R₂ᵀ at the start.
    """

    per_position = {"row_factor": (1,), "key_factor": (1,)}  # noqa: RUF012
    logit_factor = ("key_factor",)

    def __init__(self, dims: Dimensions, *, rank: int = 8, std: float = 1.0) -> None:
        super().__init__()
        self.max_length, self.std, self.cache = dims.length, std, SoftmaxCache()
        self.row_factor = dims.parameter(dims.num_heads, dims.length, rank)
        self.key_factor = dims.parameter(dims.num_heads, dims.length, rank)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # The sum of k products of two normals of deviation s has deviation s²√k.
        std = self.std**0.5 / self.row_factor.shape[-1] ** 0.25
        nn.init.normal_(self.row_factor, std=std)
        nn.init.normal_(self.key_factor, std=std)

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> SharedLogits:
        if positions.key_index is not None:
            assert positions.row_index is not None
            row, key = self.row_factor[:, positions.row_index], self.key_factor[:, positions.key_index]
            return SharedLogits((without_overflow(row) @ without_overflow(key).mT).transpose(0, 1))
        row, key = positions.take_rows(self.row_factor), leading(self.key_factor, positions.columns, 1)
        return CachedLogits(self.cache, positions, (row, key), lambda: without_overflow(row) @ without_overflow(key).mT)
