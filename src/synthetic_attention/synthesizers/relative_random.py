"""S(X)_ij = r[i − j]: a random table that depends only on the distance, in the paper's style but not in the paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..kernels import CachedLogits, SoftmaxCache
from ..logits import Positions, SharedLogits
from .base import Dimensions, SynthesizingFunction
from .registry import register


@register("relative_random")
class RelativeRandom(SynthesizingFunction):
    """R is a Toeplitz matrix: 2N − 1 logits r in each head instead of N², one per offset i − j.

    Offsets of N and more take the last logit of their side, so there is no maximum length.

    Args:
        distance: N, the distances that have a logit of their own; by default the maximum length of the layer.
        std: standard deviation of the normal distribution that r starts from; as of `random`.

    Raises:
        ValueError: neither `distance` nor a maximum length is given.
    """

    logit_factor = near_zero = ("offsets",)

    def __init__(self, dims: Dimensions, *, distance: int | None = None, std: float = 0.003) -> None:
        super().__init__()
        self.distance, self.follows_maximum = distance or dims.length, distance is None
        self.std, self.cache = std, SoftmaxCache()
        # Offset 0 is in the middle: entry n is of offset n − (N − 1).
        self.offsets = dims.parameter(dims.num_heads, 2 * self.distance - 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.offsets, std=self.std)

    def extend(self, max_length: int) -> None:
        if self.follows_maximum:
            # New distances start with the last logit of their side, which they had so far.
            apart = torch.arange(1 - max_length, max_length, device=self.offsets.device)
            offsets = self.offsets.detach()[:, self._entries(apart)]
            self.distance, self.offsets = max_length, nn.Parameter(offsets, self.offsets.requires_grad)

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> SharedLogits:
        offsets, device = self.offsets, self.offsets.device
        if positions.row_index is None and positions.columns and not torch.compiler.is_exporting():
            columns, last = positions.columns, self.distance - 1
            first = positions.offset - columns + 1
            entries = self._entries(torch.arange(first, columns, device=device))
            in_use = offsets[:, max(first, -last) + last : min(columns - 1, last) + last + 1]

            def scores() -> Tensor:
                # R[t, s] is entry t − s + S − 1 of these T + S − 1.
                return offsets.index_select(1, entries).unfold(1, columns, 1).flip(2)

            return CachedLogits(self.cache, positions, (in_use,), scores)
        apart = positions.queries(device)[..., :, None] - positions.keys(device)[..., None, :]
        found = offsets[:, self._entries(apart)]
        return SharedLogits(found if found.dim() == 3 else found.transpose(0, 1))

    def _entries(self, apart: Tensor) -> Tensor:
        """The entries of `offsets` for distances i − j."""
        return apart.clamp(1 - self.distance, self.distance - 1) + self.distance - 1
