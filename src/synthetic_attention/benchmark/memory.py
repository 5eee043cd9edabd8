"""Peak memory of a whole attention layer, beyond its parameters and their gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .layers import Case, Layer, build_layers, run_step

__all__ = ["Memory", "measure_case", "measure_layer", "peak_bytes"]


@dataclass(frozen=True)
class Memory:
    """One layer in one case.

    Attributes:
        peak: bytes, at the highest point of a step.
        kept: bytes that the forward leaves for the backward, its output included; 0 in inference.
        parameters: numbers in them.
    """

    case: Case
    training: bool
    name: str
    peak: int
    kept: int
    parameters: int


def measure_case(case: Case, variants: Sequence[str], *, training: bool = True, twins: bool = False) -> list[Memory]:
    """Bytes of each layer, the peers first."""
    torch.manual_seed(0)
    x, mask, g = case.inputs()
    layers = build_layers(case, list(variants), twins)
    return [measure_layer(case, layer, x, mask, g, training=training) for layer in layers]


def measure_layer(
    case: Case, layer: Layer, x: Tensor, mask: Tensor | None, g: Tensor, *, training: bool = True
) -> Memory:
    """Bytes of one layer, or of whatever takes its place; x, mask and g are what `case.inputs` gave."""
    # What is made once, on the first call, is not of a step.
    run_step(layer, x, mask, g, training)
    marks: list[int] = []

    def step() -> None:
        if not training:
            run_step(layer, x, mask, g, training)
            return
        y = layer.call(x, mask)
        marks.append(_mark(case.device))
        y.backward(g)
        x.grad = None

    peak, kept = peak_bytes(step, layer.module, case.device, marks)
    layer.module.zero_grad()
    return Memory(case, training, layer.name, peak, kept, sum(p.numel() for p in layer.module.parameters()))


def peak_bytes(
    step: Callable[[], None], module: nn.Module, device: str = "cpu", marks: Sequence[int] = ()
) -> tuple[int, int]:
    """Bytes at the highest point of `step` beyond what was there before it and the gradients of the parameters.

    Args:
        step: leaves the gradients of `module` behind and nothing else.
        marks: filled by `step`, by `_mark`: the moment at which to look a second time.

    Returns:
        The peak, and the bytes at the mark, or 0 without one.
    """
    if device.startswith("cuda"):
        return _peak_on_gpu(step, module, device, marks)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    events = sorted(_allocations(profiler.profiler.kineto_results.experimental_event_tree()))
    gradients = {p.grad.untyped_storage().data_ptr() for p in module.parameters() if p.grad is not None}
    # The last allocation at an address is the one that is still there.
    last = {address: index for index, (_, address, size) in enumerate(events) if size > 0}
    left_out = {last[address] for address in gradients if address in last}
    now = peak = kept = 0
    for index, (moment, _, size) in enumerate(events):
        now += 0 if index in left_out else size
        peak = max(peak, now)
        if marks and moment <= marks[0]:
            kept = now
    return peak, kept


def _mark(device: str) -> int:
    """The moment, as `peak_bytes` wants it: on a CPU a time, on a GPU the bytes that are allocated."""
    if device.startswith("cuda"):
        return torch.cuda.memory_allocated(device)
    return time.time_ns()


def _allocations(nodes: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
    """Time, address and bytes (negative where freed) of all allocations in a profile."""
    from torch._C._profiler import _EventType

    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node.tag == _EventType.Allocation:
            yield node.start_time_ns, node.extra_fields.ptr, node.extra_fields.alloc_size
        stack.extend(node.children)


def _peak_on_gpu(step: Callable[[], None], module: nn.Module, device: str, marks: Sequence[int]) -> tuple[int, int]:
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    # The allocator keeps no history: the gradients count as if they had been there at the peak.
    gradients = sum(p.grad.nbytes for p in module.parameters() if p.grad is not None)
    peak = torch.cuda.max_memory_allocated(device) - before - gradients
    return max(peak, 0), marks[0] - before if marks else 0
