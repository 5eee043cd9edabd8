"""The training clock, stopping on a signal, and progress on a terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import TrainerCallback, TrainerState

__all__ = ["ProgressReport", "StopRequest", "TrainingClock", "format_seconds"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingClock:
    """Seconds of training: the time between `start` and `stop`, added to the seconds before a resume."""

    def __init__(self, device: torch.device, seconds: float = 0.0) -> None:
        self._device = device
        self._before = seconds
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._before + (0.0 if self._started is None else time.perf_counter() - self._started)

    def start(self) -> None:
        """Start the clock; no effect if it runs."""
        if self._started is None:
            self._started = time.perf_counter()

    def stop(self) -> None:
        """Stop the clock, after the device has finished its work; no effect if it is stopped."""
        if self._started is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._before, self._started = self.seconds, None


class StopRequest:
    """Turns the first Ctrl-C or SIGTERM into a request to stop after a checkpoint; the second one interrupts."""

    def __init__(self) -> None:
        self.received: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals inside; no effect outside of the main thread, where Python does not allow it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        # A signal may arrive inside of print(), which is not reentrant.
        os.write(2, b"\nstopping after the next checkpoint; a second signal stops at once\n")


class ProgressReport(TrainerCallback):
    """Shows progress on standard error: a bar on a terminal, else a line per log entry; and each validation."""

    def __init__(self) -> None:
        self.bar: Any = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Show the bar."""
        if state.is_world_process_zero and sys.stderr.isatty():
            total = args.max_steps if args.minutes is None else None
            self.bar = tqdm(total=total, initial=state.global_step, unit="step", dynamic_ncols=True, leave=False)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Move the bar."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Show an entry."""
        if not state.is_world_process_zero or logs is None:
            return
        if "loss" in logs:
            numbers = f"loss {logs['loss']:.3f}  lr {logs['learning_rate']:.2e}"
            left = format_seconds(_seconds_left(args, state.global_step, 60 * logs["minutes"]))
            text = f"{numbers}  {logs['tokens_per_second']:,.0f} tokens/s  {left} left"
            if self.bar is not None:
                self.bar.set_postfix_str(text)
                return
        elif "eval_loss" in logs:
            text = f"validation: {_format_scores(logs, 'eval_')}"
        else:
            steps = ", ".join(map(str, logs["averaged"]))
            text = f"validation with the average of the weights at {steps}: {_format_scores(logs, 'average_')}"
        tqdm.write(f"step {state.global_step}  {text}", file=sys.stderr)


def format_seconds(seconds: float) -> str:
    """3725 → 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _seconds_left(args: Any, step: int, seconds: float) -> float:
    by_steps = (args.max_steps - step) * seconds / step
    return by_steps if args.minutes is None else max(0.0, min(by_steps, 60 * args.minutes - seconds))


def _format_scores(logs: dict[str, Any], prefix: str) -> str:
    scores = {name.removeprefix(prefix): value for name, value in logs.items() if name.startswith(prefix)}
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())
