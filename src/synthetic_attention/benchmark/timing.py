"""Timing of several things against each other, in turns."""

from __future__ import annotations

import gc
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["Quartiles", "about", "quartiles", "take_turns"]

Quartiles = tuple[float, float, float]


def take_turns(
    turns: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 2, device: str = "cpu"
) -> dict[str, list[float]]:
    """Seconds of each of `turns`, `repeats` times.

    All take turns, so that whatever else the machine does meets all of them: compare times of the same turn.
    """
    times: dict[str, list[float]] = {name: [] for name in turns}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for repeat in range(warmup + repeats):
            for name, turn in turns.items():
                _wait(device)
                start = time.perf_counter()
                turn()
                _wait(device)
                if repeat >= warmup:
                    times[name].append(time.perf_counter() - start)
    finally:
        if collecting:
            gc.enable()
    return times


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def quartiles(values: Any) -> Quartiles:
    """Lower quartile, median and upper quartile."""
    low, median, high = (float(q) for q in np.quantile(np.asarray(values), (0.25, 0.5, 0.75)))
    return low, median, high


def about(device: str = "cpu") -> dict[str, Any]:
    """What a reader of a figure has to know of its making."""
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
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, colon, value = line.partition(":")
            if colon and name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
