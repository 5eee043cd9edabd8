"""Helpers shared by the kernels: blocks, their masks and softmax, and operators with a first derivative."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
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
    """Whether Triton's kernels run where x is; older GPUs, and AMD's, have too little shared memory."""
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


def hide_later(scores: Tensor, offset: int | None, start: int, in_place: bool = True) -> Tensor:
    """−inf in rows from `start` on where key s is after row t: s > offset + t. Adding it beats `masked_fill`."""
    if offset is None or offset + start >= scores.shape[-1] - 1:
        return scores
    scores = scores if in_place else scores.clone()
    # Only in the last columns are there keys that some of the rows may not see.
    later = scores[..., offset + start + 1 :]
    later += torch.full(later.shape[-2:], -torch.inf, dtype=scores.dtype, device=scores.device).triu_()
    return scores


def wide(tensor: Tensor) -> torch.dtype:
    """The dtype to add up in: at least float32."""
    return torch.promote_types(tensor.dtype, torch.float32)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """A context in which operators compute in the dtype of their inputs. (Most callers are not under autocast.)"""
    is_on = device != "meta" and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_on else nullcontext()


def exponentials(block: Tensor) -> Tensor:
    """exp(R − rowmax); 0 in rows with nothing allowed."""
    maximum = block.amax(dim=-1, keepdim=True)
    return (block - maximum.masked_fill_(maximum == -torch.inf, 0)).exp_()


def block_softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis of scores in float32 or higher; rows of −inf become zeros."""
    if scores.device.type != "cpu":
        empty = scores.amax(dim=-1, keepdim=True) == -torch.inf
        return torch.softmax(scores.masked_fill(empty, 0), dim=-1).masked_fill_(empty, 0)
    if scores.shape[-1] <= SHORT_ROW:
        weights = exponentials(scores)
        total = weights.sum(dim=-1, keepdim=True)
        return weights.div_(total.masked_fill_(total == 0, 1))
    weights = torch.softmax(scores, dim=-1)
    # A row of −inf comes out as NaN: few masks have one, and asking costs less than a pass over the scores.
    if bool(weights[..., 0].isnan().any()):
        weights.masked_fill_((scores == -torch.inf).all(dim=-1, keepdim=True), 0)
    return weights


def operator(name: str, call: Callable[..., Any], arguments: str, outputs: int, *tags: torch.Tag) -> Any:
    """The operator `name_forward`, with its first derivative, `name_backward`.

    Args:
        call: from the arguments to an object. Its `forward()` returns the output, the only one with a derivative, and
            what is computed with it; `empty_outputs()` the like without numbers; `saved(outputs)` those that
            `backward(grad, saved, needs)` uses, with None for the others; this one the gradients of the tensors, in
            their order and any dtype, None where not needed; and `empty_gradients(needs)` the like without numbers.
        arguments: their schema. Tensors may be in lists.
        outputs: how many tensors `forward` returns.
    """

    def define(direction: str, schema: str) -> Any:
        full = f"synthetic_attention::{name}_{direction}"
        return torch.library.custom_op(full, mutates_args=(), schema=schema, tags=tags)

    @define("forward", f"({arguments}) -> ({', '.join(['Tensor'] * outputs)})")
    def forward(*inputs: Any) -> Any:
        with without_autocast(_flat(inputs)[0].device.type):
            return call(*inputs).forward()

    saved = ", ".join(f"Tensor? saved_{i}" for i in range(outputs))

    @define("backward", f"(Tensor grad, {saved}, {arguments}, bool[] needs) -> Tensor[]")
    def backward(grad: Tensor, *inputs: Any) -> list[Tensor]:
        with without_autocast(grad.device.type):
            return select(call(*inputs[outputs:-1]).backward(grad, inputs[:outputs], inputs[-1]), inputs)

    def select(gradients: Sequence[Tensor | None], inputs: Sequence[Any]) -> list[Tensor]:
        """Those that are needed, in the dtypes of the arguments."""
        pairs = zip(gradients, _flat(inputs[outputs:-1]), inputs[-1], strict=False)
        return [x.to(like.dtype) for x, like, need in pairs if need and x is not None]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        output = output if isinstance(output, tuple) else (output,)
        ctx.mark_non_differentiable(*output[1:])
        every = *call(*inputs).saved(output), *inputs
        ctx.others = _map(lambda x: None if isinstance(x, Tensor) else x, every)
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in _flat(every)))

    def autograd(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Any, ...]:
        saved = iter(ctx.saved_tensors)
        every = _map(lambda other: other if (x := next(saved)) is None else x, ctx.others)
        grads = iter(backward(grad, *every, _flat(ctx.needs_input_grad)))
        return _map(lambda need: next(grads) if need else None, ctx.needs_input_grad)

    forward.register_fake(lambda *inputs: call(*inputs).empty_outputs())
    backward.register_fake(lambda grad, *inputs: select(call(*inputs[outputs:-1]).empty_gradients(inputs[-1]), inputs))
    forward.register_autograd(autograd, setup_context=setup_context)
    backward.register_autograd(refuse_second_derivative)
    return forward


def _flat(values: Sequence[Any]) -> list[Any]:
    """The values, and those in lists."""
    return [x for value in values for x in (value if isinstance(value, list) else (value,))]


def _map(change: Callable[[Any], Any], values: Sequence[Any]) -> tuple[Any, ...]:
    """Change each value, in lists too."""
    return tuple([change(x) for x in value] if isinstance(value, list) else change(value) for value in values)


def refuse_second_derivative(ctx: Any, *grads: Any) -> None:
    """The backward of a backward: raises RuntimeError, with the way out."""
    raise RuntimeError(
        "got a second derivative of attention; its fast kernels have the first only. Compute the output under `with "
        "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):`, or use torch.func"
    )
