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


def relative_buckets(relative: Tensor, bidirectional: bool, num_buckets: int, max_distance: int) -> Tensor:
    """T5's buckets of the distances key − query: exact for near keys, logarithmic for far ones.

    Half of the buckets of one direction hold the distances 0, 1, 2, …; the rest divide the distances up to
    `max_distance` evenly on a log scale, and the last holds everything beyond. With `bidirectional`, keys after the
    query have the second half of all buckets; otherwise they count as distance 0.
    """
    later: Tensor | int = 0
    distance = (-relative).clamp_min(0)
    if bidirectional:
        num_buckets //= 2
        later, distance = (relative > 0).long() * num_buckets, relative.abs()
    near = num_buckets // 2
    log_distance = torch.log(distance.clamp_min(1).float() / near) / math.log(max_distance / near)
    far = near + (log_distance * (num_buckets - near)).long()
    return later + torch.where(distance < near, distance, far.clamp_max(num_buckets - 1))


class RelativePositionBias(nn.Embedding):
    """A learned scalar per bucket of the distance between query and key and per head, added to the logits."""

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
        relative = keys.unsqueeze(-2) - queries.unsqueeze(-1)
        buckets = relative_buckets(relative, self.bidirectional, self.num_embeddings, self.max_distance)
        return super().forward(buckets).movedim(-1, -3)
