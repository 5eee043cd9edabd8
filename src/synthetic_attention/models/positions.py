"""Positions: sinusoids, learned embeddings, and T5's relative bias.

Positions are logical: the n-th real token of a row has position n − 1. They are a tensor (T,) if all rows agree, or
(B, T) if left padding makes them differ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache

from ..synthesizers import resize
from .configuration import SynthesizerConfig


def read_positions(
    position_ids: Tensor | None, x: Tensor, attention_mask: Tensor | None, cache: Cache | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """`segment_ids` (B, T) where positions of x (B, T, …) begin again in a row, else the mask; None for the other.

    Position_ids (B, T) or (1, T) are read at real tokens only, and not when a model is exported. The mask is
    (B, past + T) or longer, None where all tokens are real. ValueError for other positions.
    """
    if position_ids is None or torch.compiler.is_exporting():
        return None, attention_mask
    past, mask = 0 if cache is None else int(cache.get_seq_length()), attention_mask
    batch, length = shape = (x.shape[0], x.shape[1])
    if mask is None:
        mask = torch.ones(batch, past + length, dtype=torch.bool, device=position_ids.device)
    real = mask[:, past : past + length].bool()
    if real.shape == shape and position_ids.shape in (shape, (1, length)):
        positions, own = position_ids.expand(batch, -1), mask.long().cumsum(1)[:, past : past + length] - 1
        before, starts = F.pad(positions.where(real, -1), (1, -1), value=-1), real & (positions == 0)
        # Read together: it waits for the device.
        checks = (positions == own) | ~real, starts | ~real | (positions == before + 1)
        is_own, begins_again = torch.stack(checks).flatten(1).all(1).tolist()
        if is_own:
            return None, attention_mask
        if begins_again and not past:
            return starts.cumsum(1).where(real, 0), None
    raise ValueError(
        f"got position_ids of shape {tuple(position_ids.shape)} from {int(position_ids.min())} to "
        f"{int(position_ids.max())} for {shape} tokens after {past} in the cache; expected 0, 1, … at the real tokens "
        "of each row, the cached ones included, or (without a cache) of each sequence in a row. Without position_ids "
        "the positions are those of the attention_mask"
    )


class SinusoidalPositions(nn.Module):
    """sin(n ω_i) in the first half of the channels and cos(n ω_i) in the second, ω_i = 10000^(−2i / d_model).

    Computed on demand: there is no table, no maximum length and nothing to store.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, positions: Tensor) -> Tensor:
        """(…) positions to (…, d_model)."""
        steps = torch.arange((self.d_model + 1) // 2, device=positions.device, dtype=torch.float32)
        angles = positions.float().unsqueeze(-1) * torch.exp(steps * (-2 * math.log(10000.0) / self.d_model))
        return torch.cat((angles.sin(), angles.cos()), dim=-1)[..., : self.d_model]


class LearnedPositions(nn.Embedding):
    """One learned vector per position."""

    def reset_parameters(self) -> None:
        """Draw small vectors: vectors as large as sinusoids were learned more slowly."""
        nn.init.normal_(self.weight, std=0.02)

    def extend(self, max_length: int) -> None:
        """Change the number of positions: the vectors that both have are kept, the rest is drawn."""
        resize(self, {"weight": (0,)}, max_length, self.reset_parameters)
        self.num_embeddings = max_length


class RelativePositionBias(nn.Embedding):
    """A learned scalar per head and per bucket (T5's) of the distance key − query, added to the logits."""

    def __init__(self, config: SynthesizerConfig, bidirectional: bool) -> None:
        # T5's. Zeros would stay near zero under an optimizer that scales updates by the weights, as T5's does.
        self.std = config.embedding_std
        self.max_distance, self.bidirectional = config.relative_attention_max_distance, bidirectional
        super().__init__(config.relative_attention_num_buckets, config.num_heads)

    def reset_parameters(self) -> None:
        """Draw biases."""
        nn.init.normal_(self.weight, std=self.std)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:  # type: ignore[override]
        """Positions (T,) and (S,) to (H, T, S); (B, T) and (B, S) to (B, H, T, S)."""
        from transformers.models.t5.modeling_t5 import T5Attention

        relative = keys.unsqueeze(-2) - queries.unsqueeze(-1)
        sizes = self.bidirectional, self.num_embeddings, self.max_distance
        return super().forward(T5Attention._relative_position_bucket(relative, *sizes)).movedim(-1, -3)
