"""Measure several layers or models side by side: time in turns, peak memory, operations."""

from __future__ import annotations

import gc
import json
import platform
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

Quartiles = tuple[float, float, float]
# As `measurement` returns them.
Measurement = Mapping[str, Any]
# x (B, L, width), a mask (B, L) of real tokens, and the gradient of the output.
Inputs = tuple[Tensor, Tensor | None, Tensor]
# The name of the forward in a profile.
_FORWARD = "benchmark forward"


@dataclass(frozen=True)
class Contender:
    """A module, and how to call it with x (B, L, width) and a mask (B, L) of real tokens."""

    module: nn.Module
    call: Callable[[Tensor, Tensor | None], Tensor]

    def step(self, inputs: Inputs, training: bool, for_memory: bool = False) -> int:
        """Forward and backward, or the forward in inference.

        Args:
            for_memory: keep the gradients of the parameters, and return an accelerator's bytes after the forward.
        """
        x, mask, gradient = inputs
        if not training:
            with torch.inference_mode():
                self.call(x, mask)
            return 0
        with record_function(_FORWARD):
            y = self.call(x, mask)
        allocated = torch.accelerator.memory_allocated() if for_memory and x.device.type != "cpu" else 0
        y.backward(gradient)
        x.grad = None
        if not for_memory:
            self.module.zero_grad()
        return allocated


def measurement(case: Any, name: str, training: bool = False, **figures: object) -> dict[str, Any]:
    """The figures of one layer or model, with the sizes of its `Case` or `GenerationCase`, as JSON has them.

    Args:
        milliseconds: quartiles over the turns.
        ratio: quartiles of the speedup over the baseline, turn by turn.
        peak: bytes at the highest point of a step, without parameters and their gradients.
        kept: bytes that the forward leaves for the backward, its output included; 0 in inference.
        cache_bytes: bytes of the cached keys and values at the end, cross-attention included.
        parameters: their number.
    """
    sizes = {**asdict(case), "dtype": str(case.dtype).removeprefix("torch.")}
    return {**sizes, "name": name, "training": training, **figures}


def time_turns(
    turns: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 2, device: str = "cpu"
) -> dict[str, tuple[Quartiles, Quartiles]]:
    """Quartiles of the milliseconds of each of `turns`, and of its speedup over the first.

    The turns alternate, so background load affects all equally. An accelerator's turns are timed by its events, and
    queued without waiting for one another, as in training.
    """
    taken: dict[str, list[Callable[[], float]]] = {name: [] for name in turns}
    gc.collect()
    gc.disable()
    try:
        for repeat in range(warmup + repeats):
            for name, turn in turns.items():
                milliseconds = _time(turn, device)
                if repeat >= warmup:
                    taken[name].append(milliseconds)
        if device != "cpu":
            torch.accelerator.synchronize()
    finally:
        gc.enable()
    times = {name: np.array([milliseconds() for milliseconds in each]) for name, each in taken.items()}
    first = next(iter(times.values()))
    return {name: (_quartiles(mine), _quartiles(first / mine)) for name, mine in times.items()}


def _time(turn: Callable[[], object], device: str) -> Callable[[], float]:
    """Run a turn; returns what gives its milliseconds once the device has finished."""
    if device == "cpu":
        begin = time.perf_counter()
        turn()
        milliseconds = 1e3 * (time.perf_counter() - begin)
        return lambda: milliseconds
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    start.record()
    turn()
    end.record()
    return lambda: start.elapsed_time(end)


def _quartiles(values: Any) -> Quartiles:
    low, median, high = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return low, median, high


def measure_memory(contender: Contender, inputs: Inputs, training: bool) -> tuple[int, int]:
    """`peak` and `kept` of a `measurement`, after a first call, which may allocate what later calls reuse."""
    if inputs[0].device.type == "cpu":
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            contender.step(inputs, training, for_memory=True)
        peak, kept = _read_profile(profiler, [p.grad for p in contender.module.parameters() if p.grad is not None])
    else:
        before = torch.accelerator.memory_allocated()
        torch.accelerator.reset_peak_memory_stats()
        after = contender.step(inputs, training, for_memory=True)
        # The allocator has no history: the gradients count as if they had all been there at the peak.
        gradients = sum(p.grad.nbytes for p in contender.module.parameters() if p.grad is not None)
        peak = max(torch.accelerator.max_memory_allocated() - before - gradients, 0)
        kept = after - before if training else 0
    contender.module.zero_grad()
    return peak, kept


def _read_profile(profiler: profile, gradients: list[Tensor]) -> tuple[int, int]:
    """`peak` and `kept` from the allocations of a profile, without those of `gradients`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    forward_end = max((each["ts"] + each["dur"] for each in events if each["name"] == _FORWARD), default=0)
    memory = sorted((each for each in events if each["name"] == "[memory]"), key=lambda each: each["args"]["Ev Idx"])
    changes = [(each["ts"], each["args"]["Addr"], each["args"]["Bytes"]) for each in memory]
    # The last allocation at the address of a gradient is the gradient.
    last = {address: index for index, (_, address, size) in enumerate(changes) if size > 0}
    left_out = {last.get(gradient.untyped_storage().data_ptr()) for gradient in gradients}
    now = peak = kept = 0
    for index, (moment, _, size) in enumerate(changes):
        now += 0 if index in left_out else size
        peak = max(peak, now)
        kept = now if moment <= forward_end else kept
    return peak, kept


def about(device: str = "cpu") -> dict[str, Any]:
    """The circumstances of a measurement: command, date, versions, hardware."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
    }


def _processor() -> str:
    """The processor; on Linux with family and model, which tell its generations apart."""
    with suppress(OSError, KeyError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        found = dict(re.findall(r"(?m)^(model name|cpu family|model)\s*: (.+)$", text))
        return f"{found['model name']}, family {found['cpu family']}, model {found['model']}"
    return platform.processor() or platform.machine()


def tables(found: Sequence[Measurement]) -> Iterator[Table]:
    """A table for each kind of figures of layers or models that were measured alike."""
    first = found[0]
    generates = "task" in first
    if generates:
        lengths = f"{first['prompt']} + {first['new_tokens']} tokens"
        what = f"{first['task']}, {lengths}, {first['layers']} layers, {first['width']} wide"
    else:
        what = f"{first['mask']}, {'forward + backward' if first['training'] else 'forward, inference'}"
    spread = max((high - low) / median for low, median, high in (each["ratio"] for each in found))
    caption = f"medians over turns; the quartiles of a ratio are at most {100 * spread:.0f} % apart"
    yield _table(f"speed, {what} ({first['name']} = 1)", caption, found, lambda each: f"{each['ratio'][1]:.2f}")
    if generates:
        caption = "milliseconds of a call ÷ new tokens of a sequence"
        yield _table(f"ms, {what}", caption, found, lambda each: f"{each['milliseconds'][1] / each['new_tokens']:.2f}")
    else:
        caption = "memory without parameters and gradients; in brackets, what the forward keeps for the backward"
        yield _table(f"peak MB, {what}", caption, found, _memory)
    if "cache_bytes" in first:
        caption = "cached keys and values at the end; in brackets, millions of parameters"
        yield _table(f"cache MB, {what}", caption, found, _cache)


def _table(title: str, caption: str, found: Sequence[Measurement], cell: Callable[[Measurement], str]) -> Table:
    """One row per layer or model, one column per shape."""
    table = Table(title=title, caption=caption)
    table.add_column("", no_wrap=True)
    for shape in dict.fromkeys(map(_shape, found)):
        table.add_column(shape, justify="right", no_wrap=True)
    for name in dict.fromkeys(each["name"] for each in found):
        table.add_row(name, *(cell(each) for each in found if each["name"] == name))
    return table


def _shape(each: Measurement) -> str:
    if "length" in each:
        return f"{each['batch']}×{each['length']}"
    return f"{each['batch']} greedy" if each["num_beams"] == 1 else f"{each['batch']}, {each['num_beams']} beams"


def _memory(each: Measurement) -> str:
    return f"{each['peak'] / 1e6:,.0f}" + (f" ({each['kept'] / 1e6:,.0f})" if each["training"] else "")


def _cache(each: Measurement) -> str:
    return f"{each['cache_bytes'] / 1e6:.1f} ({each['parameters'] / 1e6:.1f})"
