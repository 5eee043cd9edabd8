"""Groups of heads, each with a synthesizing function or mixture of its own: "random:6/vanilla:2"."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

from ..logits import GroupedLogits, Positions
from .base import CompositeFunction, SynthesizingFunction


class HeadGroups(CompositeFunction):
    """Synthesizing functions side by side: the first one makes the logits of the first `sizes[0]` heads, and so on.

    Each is made for its heads only, and so are its projections of the input and the keys that a cache keeps.
    """

    def __init__(self, functions: Sequence[SynthesizingFunction], sizes: Sequence[int]) -> None:
        super().__init__(functions)
        self.sizes = tuple(sizes)

    @property
    def values_by_feature(self) -> bool:
        # The smaller part is copied.
        pairs = zip(self.components, self.sizes, strict=True)
        return 2 * sum(size for function, size in pairs if function.values_by_feature) >= sum(self.sizes)

    def groups(self) -> list[tuple[slice, SynthesizingFunction]]:
        ends = itertools.accumulate(self.sizes)
        pairs = zip(self.components, ends, self.sizes, strict=True)
        return [(slice(end - size, end), function) for function, end, size in pairs]

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> GroupedLogits:
        return GroupedLogits(self.terms(features, positions, keys), self.sizes)
