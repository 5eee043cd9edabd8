"""Rotary positions (RoFormer, arXiv 2104.09864): queries and keys are turned by an angle for each position.

Shape legend: B batch, H heads, T tokens, K width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ..logits import Positions

# The frequencies of these depend on the length of the longest sequence in a batch.
_CHANGING = ("dynamic", "longrope")


class Rotary:
    """x ↦ x ∘ cos(p ω) + r(x) ∘ sin(p ω) for a token at position p, where r(x) = (−x₂, x₁) for the halves of x.

    ω_i = theta^(−2i / K), scaled as transformers scales it. All layers of a stack share one object, so that sines and
    cosines are computed once in each call of a model. It has no tensors that are moved or converted with the model.

    Args:
        config: has `rope_parameters` and the sizes, as transformers' configurations do.
        head_dim: K.

    Raises:
        ValueError: an odd K or a part of it, or a scaling that is not known, lacks a number, or changes with the length
            of the input.
    """

    def __init__(self, config: Any, head_dim: int) -> None:
        given = {"rope_type": "default", "rope_theta": 10000.0, **(config.rope_parameters or {})}
        kind = given["rope_type"]
        known = ["default", *(name for name in ROPE_INIT_FUNCTIONS if name not in ("default", *_CHANGING))]
        if kind not in known:
            raise ValueError(f"got rope_type={kind!r} in rope_parameters; expected one of: {', '.join(known)}")
        frequencies, self.scale = torch.empty(0), 1.0
        # Models are built on the meta device too.
        with torch.device("cpu"):
            try:
                if kind == "default":
                    width = head_dim * given.get("partial_rotary_factor", 1)
                    frequencies = given["rope_theta"] ** -(torch.arange(0, width, 2).float() / width)
                else:
                    frequencies, self.scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
            except (KeyError, TypeError) as error:
                raise ValueError(f"got rope_parameters={given}; expected numbers that {kind!r} has: {error}") from error
        if 2 * len(frequencies) != head_dim:
            raise ValueError(f"got rotary positions for {2 * len(frequencies)} of {head_dim} features; expected all")
        self.frequencies = frequencies.float()
        self._last: tuple[Any, ...] = (None, None)

    def __call__(self, x: Tensor, positions: Positions) -> Tensor:
        """Turn the new tokens x (B, H, T, K)."""
        cos, sin = self.factors(x, positions)
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    def factors(self, like: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rows, (T, K) or (B, 1, T, K), with dtype and device of `like`."""
        # Read once: another thread may replace it.
        key, (last, last_key, *factors) = (like.dtype, like.device), self._last
        if not torch.compiler.is_compiling() and last is positions and last_key == key:
            return factors[0], factors[1]
        queries = positions.queries(like.device)
        angles = queries[..., None].float() * self.frequencies.to(like.device)
        angles = torch.cat((angles, angles), dim=-1)
        angles = angles[:, None] if queries.dim() == 2 else angles
        cos, sin = ((y * self.scale).to(like.dtype) for y in (angles.cos(), angles.sin()))
        if not torch.compiler.is_compiling():
            self._last = positions, key, cos, sin
        return cos, sin
