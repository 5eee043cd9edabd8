"""Packed rows: several sentences in one row of a batch, none of which sees another.

A sentence means the same wherever it stands: positions, rows of R and columns of W₂ begin anew with it. So a packed
batch is computed as a padded batch of its sentences, in which the shared forms of logits stay shared, and what comes
out is moved back to the slots of the rows.

Shape legend: B rows, L slots, N sentences, M tokens of the longest one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..masks import Padding

__all__ = ["PackedSentences"]


@dataclass(frozen=True, eq=False)
class PackedSentences:
    """Where the sentences of a batch of packed rows are. Does for them what `Padding` does for padded rows.

    Attributes:
        index: (N, M), the slot in the flattened rows of each sentence's n-th token; 0 after its end.
        place: (B, L), the reverse: each token's slot in the flattened sentences; 0 at padding.
        real: (B, L) bool, True at tokens.
        aligned: the padding of the batch of sentences.
    """

    index: Tensor
    place: Tensor
    real: Tensor
    aligned: Padding

    @classmethod
    def from_segments(cls, segment_ids: Tensor) -> PackedSentences:
        """Read segments (B, L): 0 at padding, elsewhere a number that changes from one sentence to the next.

        Raises:
            ValueError: the segments are not (B, L), or all padding.
        """
        if segment_ids.dim() != 2 or not bool(segment_ids.any()):
            raise ValueError(
                f"got segment_ids of shape {tuple(segment_ids.shape)}, {int(segment_ids.count_nonzero())} of them not "
                "0; expected (B, L), 0 at padding and for each sentence a number other than that of its neighbours"
            )
        real, slots = segment_ids != 0, torch.arange(segment_ids.shape[1], device=segment_ids.device)
        starts = real.clone()
        starts[:, 1:] &= segment_ids[:, 1:] != segment_ids[:, :-1]
        position = (slots - torch.where(starts, slots, 0).cummax(dim=1).values).masked_fill(~real, 0)
        sentence = (starts.flatten().cumsum(0) - 1).view_as(segment_ids)
        longest, count = int(position.max()) + 1, int(starts.sum())
        place = (sentence * longest + position).masked_fill(~real, 0)
        index = place.new_zeros(count * longest)
        index[place[real]] = real.flatten().nonzero().squeeze(1)
        mask = torch.zeros_like(index, dtype=torch.bool)
        mask[place[real]] = True
        mask = mask.view(count, longest)
        return cls(index.view(count, longest), place, real, Padding(mask, None, full=bool(mask.all())))

    def align(self, x: Tensor) -> Tensor:
        """(B, L, …) to (N, M, …); what is after the end of a sentence is of some token."""
        return x.flatten(0, 1)[self.index]

    def restore(self, x: Tensor) -> Tensor:
        """Undo `align`; the padded slots are zeros."""
        restored = x.flatten(0, 1)[self.place]
        return restored.masked_fill(~self.real.view(*self.real.shape, *[1] * (x.dim() - 2)), 0)
