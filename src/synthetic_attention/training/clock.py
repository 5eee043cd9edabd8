"""The training clock: wall time, except while it is paused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["TrainingClock"]


class TrainingClock:
    """Counts seconds between `start` and `stop`; stands still inside `paused`. Begins with the seconds of the run."""

    def __init__(self, device: torch.device, seconds: float = 0.0) -> None:
        self._device = device
        self._before = seconds
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds on the clock."""
        running = 0.0 if self._started is None else time.perf_counter() - self._started
        return self._before + running

    def start(self) -> None:
        """Let it run; no effect on a clock that runs."""
        if self._started is None:
            self._started = time.perf_counter()

    def stop(self) -> None:
        """Let it stand; no effect on a clock that stands."""
        # Work that was queued while it ran belongs on it.
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._before, self._started = self.seconds, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still inside; run on after it if it ran before."""
        ran = self._started is not None
        self.stop()
        try:
            yield
        finally:
            if ran:
                self.start()
