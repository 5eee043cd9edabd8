"""S(X) = R: attention weights that are parameters (random) or drawn once for ever (fixed random)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..logits import SharedLogits
from .base import Dimensions, Options, Span, SynthesizingFunction, positive, register
from .kept import KeptWeights


@dataclass(frozen=True, kw_only=True)
class RandomOptions(Options):
    """Options of `random`.

    Attributes:
        std: standard deviation of the normal distribution that R starts from. Small by default: attention starts as an
            average over all positions, and R has to be learned (about the authors' scale; measured in docs/results.md).
    """

    std: float = 0.003

    def __post_init__(self) -> None:
        positive(self.std, "std", "random")


@dataclass(frozen=True, kw_only=True)
class FixedRandomOptions(Options):
    """Options of `fixed_random`.

    Attributes:
        std: standard deviation of the normal distribution that R is drawn from, once. Large by default: a small one
            leaves all heads the same average over positions for ever.
    """

    std: float = 1.0

    def __post_init__(self) -> None:
        positive(self.std, "std", "fixed_random")


class _RandomTable(SynthesizingFunction):
    """R (H, N, N), the same for all examples."""

    table: Tensor

    def __init__(
        self,
        dims: Dimensions,
        options: RandomOptions | FixedRandomOptions,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        assert dims.max_length is not None
        self.max_length, self.std = dims.max_length, options.std
        self._kept = KeptWeights()
        self._own(torch.empty(dims.num_heads, dims.max_length, dims.max_length, device=device, dtype=dtype))
        self.reset_parameters()

    def _own(self, table: Tensor) -> None:
        """Keep R as a parameter or as a buffer."""
        raise TypeError(f"{type(self).__name__} does not define _own()")

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    def forward(self, inputs: Sequence[Tensor], span: Span, keys: Tensor | None) -> SharedLogits:
        scores = span.take(self.table)
        return SharedLogits(scores, kept=self._kept.still(span, scores) if self.is_alone else None)


@register("random")
class Random(_RandomTable):
    """The Random Synthesizer: R is trained."""

    Options = RandomOptions

    def _own(self, table: Tensor) -> None:
        self.table = nn.Parameter(table)

    def logit_parameters(self) -> list[nn.Parameter]:
        assert isinstance(self.table, nn.Parameter)
        return [self.table]


@register("fixed_random")
class FixedRandom(_RandomTable):
    """The Fixed Random Synthesizer: R is saved with the model and never trained."""

    Options = FixedRandomOptions

    def _own(self, table: Tensor) -> None:
        self.register_buffer("table", table)
