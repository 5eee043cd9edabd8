"""S(X) = R₁ R₂ᵀ: a random table of low rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..logits import SharedLogits
from .base import Dimensions, Options, Span, SynthesizingFunction, empty, positive, register, whole
from .kept import KeptWeights


@dataclass(frozen=True, kw_only=True)
class FactorizedRandomOptions(Options):
    """Options of `factorized_random`.

    Attributes:
        rank: k, the width of R₁ and R₂; 8 in the paper.
        std: standard deviation of R₁R₂ᵀ at the start.
    """

    rank: int = 8
    std: float = 1.0

    def __post_init__(self) -> None:
        whole(self.rank, "rank", "factorized_random")
        positive(self.std, "std", "factorized_random")


@register("factorized_random")
class FactorizedRandom(SynthesizingFunction):
    """The Factorized Random Synthesizer: 2Nk parameters in each head instead of N². Not the `factorized` mode of the
    authors' code, whose logits are the same for every query (a bug there)."""

    Options = FactorizedRandomOptions

    def __init__(
        self,
        dims: Dimensions,
        options: FactorizedRandomOptions,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        assert dims.max_length is not None
        self.max_length, self.std = dims.max_length, options.std
        self._kept = KeptWeights()
        shape = (dims.num_heads, dims.max_length, options.rank)
        self.row_factor = empty(*shape, device=device, dtype=dtype)
        self.key_factor = empty(*shape, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # The sum of k products of two normals of deviation s has deviation s²√k.
        std = self.std**0.5 / self.row_factor.shape[-1] ** 0.25
        nn.init.normal_(self.row_factor, std=std)
        nn.init.normal_(self.key_factor, std=std)

    def forward(self, inputs: Sequence[Tensor], span: Span, keys: Tensor | None) -> SharedLogits:
        if span.key_positions is None:
            row, key = span.take_rows(self.row_factor), self.key_factor[:, : span.columns]
            kept = self._kept.still(span, row, key) if self.is_alone else None
            if kept is not None and "scores" in kept:
                return SharedLogits(kept["scores"], kept=kept)
            scores = row @ key.mT
            if kept is not None:
                kept["scores"] = scores
            return SharedLogits(scores, kept=kept)
        assert span.row_positions is not None
        row, key = self.row_factor[:, span.row_positions], self.key_factor[:, span.key_positions]
        return SharedLogits((row @ key.mT).transpose(0, 1))
