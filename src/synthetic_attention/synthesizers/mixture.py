"""S(X) = Σ α_i S_i(X), mixed on the logits inside one softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from ..layout import Positions
from ..logits import MixedLogits
from .base import Dimensions, SynthesizingFunction
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


class Mixture(SynthesizingFunction):
    """A sum of synthesizing functions, weighted by learned α that sum to 1. All start with the same weight."""

    near_zero = ("gate",)

    def __init__(self, functions: Sequence[SynthesizingFunction], dims: Dimensions, options: MixtureOptions) -> None:
        super().__init__()
        self.functions = nn.ModuleList(functions)
        self.kind = options.gate
        shapes = {"softmax": (len(functions), dims.num_heads), "sigmoid": (1,)}
        self.gate = dims.parameter(*shapes[self.kind]) if self.kind in shapes else None
        self.num_features = sum(function.num_features for function in functions)
        self.caches_keys = any(function.caches_keys for function in functions)
        self.max_length = min((f.max_length for f in functions if f.max_length is not None), default=None)
        if self.gate is not None:
            nn.init.zeros_(self.gate)

    def reset_parameters(self) -> None:
        if self.gate is not None:
            nn.init.zeros_(self.gate)
        for function in self.components:
            function.reset_parameters()

    def extend(self, max_length: int) -> None:
        for function in self.components:
            function.extend(max_length)
        self.max_length = None if self.max_length is None else max_length

    @property
    def components(self) -> list[SynthesizingFunction]:
        """The functions that are mixed."""
        return cast(list[SynthesizingFunction], list(self.functions))

    def weights(self) -> Tensor | None:
        """α, (components, H or 1); None for a plain sum."""
        if self.gate is None:
            return None
        if self.kind == "softmax":
            return torch.softmax(self.gate, dim=0)
        gate = torch.sigmoid(self.gate)
        return torch.stack([gate, 1 - gate])

    def project(self, x: Tensor) -> Sequence[Tensor]:
        return [feature for function in self.components for feature in function.project(x)]

    def _split(self, features: Sequence[Tensor]) -> list[tuple[SynthesizingFunction, Sequence[Tensor]]]:
        """Each component with its features."""
        parts, start = [], 0
        for function in self.components:
            parts.append((function, features[start : start + function.num_features]))
            start += function.num_features
        return parts

    def keys(self, features: Sequence[Tensor]) -> Tensor | None:
        # Two steps: torch.compile breaks the graph at an assignment inside of a list.
        all_keys = [function.keys(part) for function, part in self._split(features)]
        keys = [key for key in all_keys if key is not None]
        return torch.cat(keys, dim=-1) if len(keys) > 1 else keys[0] if keys else None

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> MixedLogits:
        count = sum(function.caches_keys for function in self.components)
        own = iter(keys.chunk(count, dim=-1) if keys is not None and count else ())
        terms = [
            function(part, positions, next(own) if function.caches_keys else None)
            for function, part in self._split(features)
        ]
        return MixedLogits(terms, self.weights())
