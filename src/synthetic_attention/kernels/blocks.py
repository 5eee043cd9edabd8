"""Helpers shared by the blockwise kernels: blocks, their masks and softmax."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

# On a CPU torch.softmax takes several times as long as its parts where rows are this short.
SHORT_ROW = 48
_HAS_TRITON = find_spec("triton") is not None
# Triton's interpreter, for tests, runs kernels on a CPU.
_IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def has_triton(x: Tensor) -> bool:
    """Whether Triton's kernels run where x is; those of older GPUs, and of AMD's, have too little shared memory."""
    if not _HAS_TRITON or not x.is_cuda:
        return _HAS_TRITON and _IS_INTERPRETED
    return torch.version.hip is None and torch.cuda.get_device_capability(x.device) >= (8, 0)


def block_bytes(device: torch.device) -> int:
    """Bytes of scores to work on at a time: on a CPU few enough for its cache, elsewhere enough to fill the device."""
    return 2 << 20 if device.type == "cpu" else 64 << 20


def slices(count: int, step: int) -> Iterator[slice]:
    """`count` in parts of `step`, the last one shorter."""
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def blocks(
    shape: Sequence[int], size: int, device: torch.device, offset: int | None
) -> Iterator[tuple[slice, slice, int]]:
    """Heads, rows and number of columns of blocks of (H, T, S) scores of `size` bytes: whole heads if they fit.

    Causal blocks (row t sees keys ≤ offset + t) are of rows always, cut after the last key that they see.
    """
    (heads, rows, columns), most = shape, block_bytes(device)
    # Rather fewer heads than fewer rows: products of many rows are the fast ones.
    step = rows if size * rows * columns <= most else max(64, most // (size * columns))
    if offset is not None:
        step = min(step, max(64, rows // 4))
    for h in slices(heads, max(1, most // (size * step * columns))):
        for t in slices(rows, step):
            yield h, t, columns if offset is None else min(columns, offset + t.stop)


def hide_later(scores: Tensor, first_row: int) -> Tensor:
    """−inf, in place, where key s is after row t: s > first_row + t. Adding it is faster than `masked_fill`."""
    # Only in the last columns are there keys that some of the rows may not see.
    later = scores[..., first_row + 1 :]
    later += torch.full(later.shape[-2:], -torch.inf, dtype=scores.dtype, device=scores.device).triu_()
    return scores


def wide(tensor: Tensor) -> torch.dtype:
    """The dtype to add up in: at least float32."""
    return torch.promote_types(tensor.dtype, torch.float32)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """A context in which operators compute in the dtype of their inputs. (Most callers are not under autocast.)"""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def block_softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis of scores in float32 or higher; rows of −inf become zeros."""
    if scores.device.type != "cpu":
        empty = scores.amax(dim=-1, keepdim=True) == -torch.inf
        return torch.softmax(scores.masked_fill(empty, 0), dim=-1).masked_fill_(empty, 0)
    if scores.shape[-1] <= SHORT_ROW:
        highest = scores.amax(dim=-1, keepdim=True)
        exponentials = (scores - highest.masked_fill_(highest == -torch.inf, 0)).exp_()
        total = exponentials.sum(dim=-1, keepdim=True)
        return exponentials.div_(total.masked_fill_(total == 0, 1))
    weights = torch.softmax(scores, dim=-1)
    # A row of −inf comes out as NaN: few masks have one, and asking costs less than a pass over the scores.
    if bool(weights[..., 0].isnan().any()):
        weights.masked_fill_((scores == -torch.inf).all(dim=-1, keepdim=True), 0)
    return weights


def refuse_second_derivative(ctx: Any, *grads: Any) -> None:
    """The backward of a backward: raises RuntimeError, with the way out."""
    raise RuntimeError(
        "got a second derivative of attention; its fast kernels have the first only. Compute the output under `with "
        "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):`, or use torch.func"
    )
