"""S(X) = Σ α_i S_i(X), mixed on the logits inside one softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..logits import MixedLogits
from .base import Dimensions, Options, Span, SynthesizingFunction, empty

GATES = ("softmax", "sigmoid", "sum")


@dataclass(frozen=True, kw_only=True)
class MixtureOptions(Options):
    """Options of mixtures, under the key "mixture".

    Attributes:
        gate: "softmax", α is a softmax over the components in each head; "sigmoid", one scalar s in each layer, the
            first of two components has weight s and the second 1 − s (the authors' code); "sum", no weights.
    """

    gate: str = "softmax"

    def __post_init__(self) -> None:
        if self.gate not in GATES:
            raise ValueError(f"got gate={self.gate!r} for 'mixture'; expected one of: {', '.join(GATES)}")

    def check(self, components: int, max_length: int | None) -> None:
        if self.gate == "sigmoid" and components > 2:
            raise ValueError(
                f"got gate='sigmoid' for a mixture of {components} components; expected two. "
                "For more, use gate='softmax'"
            )


class Mixture(SynthesizingFunction):
    """A sum of synthesizing functions, weighted by learned α that sum to 1. All start with the same weight."""

    Options = MixtureOptions

    def __init__(
        self,
        parts: Sequence[SynthesizingFunction],
        dims: Dimensions,
        options: MixtureOptions,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.kind = options.gate
        shape = {"softmax": (len(parts), dims.num_heads), "sigmoid": (1,), "sum": None}[options.gate]
        self.gate = None if shape is None else empty(*shape, device=device, dtype=dtype)
        self.widths = tuple(width for part in parts for width in part.widths)
        self.key_parts = [i for i, part in enumerate(parts) if part.caches_keys]
        self.caches_keys = bool(self.key_parts)
        maxima = [part.max_length for part in parts if part.max_length is not None]
        self.max_length = min(maxima, default=None)
        for part in self._functions():
            part.is_alone = False
        self._reset_gate()

    def _reset_gate(self) -> None:
        if self.gate is not None:
            nn.init.zeros_(self.gate)

    def reset_parameters(self) -> None:
        self._reset_gate()
        for part in self._functions():
            part.reset_parameters()

    def logit_parameters(self) -> list[nn.Parameter]:
        return [] if self.gate is None else [self.gate]

    def _functions(self) -> list[SynthesizingFunction]:
        return [part for part in self.parts if isinstance(part, SynthesizingFunction)]

    def weights(self) -> Tensor | None:
        """α, (components, H or 1); None for a plain sum."""
        if self.gate is None:
            return None
        if self.kind == "softmax":
            return torch.softmax(self.gate, dim=0)
        gate = torch.sigmoid(self.gate)
        return torch.stack([gate, 1 - gate])

    def _share_out(self, inputs: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """To each part what it wants of the projected inputs."""
        shares, start = [], 0
        for part in self._functions():
            shares.append(inputs[start : start + len(part.widths)])
            start += len(part.widths)
        return shares

    def keys(self, inputs: Sequence[Tensor]) -> Tensor | None:
        if not self.caches_keys:
            return None
        shares = self._share_out(inputs)
        keys = [self._functions()[i].keys(shares[i]) for i in self.key_parts]
        found = [key for key in keys if key is not None]
        return found[0] if len(found) == 1 else torch.cat(found, dim=-1)

    def forward(self, inputs: Sequence[Tensor], span: Span, keys: Tensor | None) -> MixedLogits:
        parts_keys: dict[int, Tensor] = {}
        if keys is not None:
            parts_keys = dict(zip(self.key_parts, keys.chunk(len(self.key_parts), dim=-1), strict=True))
        shares = self._share_out(inputs)
        terms = [part(shares[i], span, parts_keys.get(i)) for i, part in enumerate(self.parts)]
        return MixedLogits(terms, self.weights())
