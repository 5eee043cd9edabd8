"""What the kernels that work block by block share: how large a block is, and its softmax."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["block_bytes", "block_softmax"]

# On a CPU torch.softmax takes several times as long as its parts where rows are this short.
SHORT_ROW = 48


def block_bytes(device: torch.device) -> int:
    """Bytes of scores to work on at a time: on a CPU what stays in the cache, elsewhere enough to fill the device."""
    return 2 << 20 if device.type == "cpu" else 64 << 20


def block_softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis of `scores`, which is overwritten; rows of −inf become zeros.

    Args:
        scores: (…, T, S) in float32 or higher.
    """
    highest = scores.amax(dim=-1, keepdim=True)
    empty = highest == -torch.inf
    # Asking is cheap where it does not have to wait for a GPU, and the answer is no but for a few masks.
    if scores.device.type != "cpu" or bool(empty.any()):
        return torch.softmax(scores.masked_fill_(empty, 0), dim=-1).masked_fill_(empty, 0)
    if scores.shape[-1] > SHORT_ROW:
        return torch.softmax(scores, dim=-1)
    exponentials = scores.sub_(highest).exp_()
    return exponentials.div_(exponentials.sum(dim=-1, keepdim=True))
