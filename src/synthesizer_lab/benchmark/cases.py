"""The input of a layer or encoder: sizes, mask, dtype and device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UserError
from .harness import Inputs

MASKS = ("full", "causal", "padded")


@dataclass(frozen=True)
class Case:
    """The input of a layer: x (batch, length, width), with one of the masks of `MASKS`.

    Raises:
        UserError: sizes that do not fit, or an unknown mask.
    """

    batch: int
    length: int
    mask: str = "full"
    width: int = 512
    heads: int = 8
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.mask not in MASKS:
            raise UserError(f"got mask {self.mask!r}; expected one of: {', '.join(MASKS)}")
        if self.batch < 1 or self.length < 2:
            raise UserError(f"got {self.batch} sequences of length {self.length}; expected at least 1 of length 2")
        if self.width % self.heads:
            raise UserError(f"got width {self.width} and {self.heads} heads; expected heads that divide the width")

    @property
    def is_causal(self) -> bool:
        return self.mask == "causal"

    @property
    def lengths(self) -> Tensor:
        """(B,), the real tokens of each sequence: with padding between L/2 and L."""
        shortest = self.length // 2 if self.mask == "padded" else self.length
        return torch.linspace(shortest, self.length, self.batch).long()

    def key_mask(self) -> Tensor | None:
        """(B, L), True at real tokens; None without padding."""
        if self.mask != "padded":
            return None
        return (torch.arange(self.length) < self.lengths[:, None]).to(self.device)

    def inputs(self) -> Inputs:
        """Random inputs, the same for the same seed."""
        x = torch.randn(self.batch, self.length, self.width, dtype=self.dtype, device=self.device)
        return x.requires_grad_(), self.key_mask(), torch.randn_like(x)
