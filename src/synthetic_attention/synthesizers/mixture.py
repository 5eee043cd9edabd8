"""S(X) = Σ α_i S_i(X), mixed on the logits inside one softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..logits import MixedLogits, Positions
from .base import CompositeFunction, Dimensions, SynthesizingFunction
from .registry import OPTIONS, Options


@dataclass(frozen=True, kw_only=True)
class MixtureOptions(Options):
    """Options of mixtures, under the key "mixture".

    Attributes:
        gate: "softmax", α is a softmax over the components in each head; "sigmoid", one scalar s in each layer, the
            first of two components has weight s and the second 1 − s (the authors' code); "sum", no weights.
    """

    gate: Literal["softmax", "sigmoid", "sum"] = "softmax"


OPTIONS["mixture"] = MixtureOptions


class Mixture(CompositeFunction):
    """A sum of synthesizing functions, weighted by learned α that sum to 1. All start with the same weight."""

    near_zero = ("gate",)

    def __init__(self, functions: Sequence[SynthesizingFunction], dims: Dimensions, options: MixtureOptions) -> None:
        super().__init__(functions)
        self.kind = options.gate
        shapes = {"softmax": (len(functions), dims.num_heads), "sigmoid": (1,)}
        self.gate = dims.parameter(*shapes[self.kind]) if self.kind in shapes else None
        if self.gate is not None:
            nn.init.zeros_(self.gate)

    def reset_parameters(self) -> None:
        if self.gate is not None:
            nn.init.zeros_(self.gate)
        super().reset_parameters()

    def weights(self) -> Tensor | None:
        if self.gate is None:
            return None
        if self.kind == "softmax":
            return torch.softmax(self.gate, dim=0)
        gate = torch.sigmoid(self.gate)
        return torch.stack([gate, 1 - gate])

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> MixedLogits:
        return MixedLogits(self.terms(features, positions, keys), self.weights())
