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

from ..errors import unread_ignored

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TrainingClock:
    """Seconds of training: the time between `start` and `stop`, added to the seconds before a resume."""

    def __init__(self, device: torch.device, seconds: float = 0.0) -> None:
        self._device, self._before = device, seconds
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
    """Turns the first Ctrl-C, SIGTERM or SIGHUP into a request to stop after a checkpoint; the second interrupts."""

    received: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals inside; no effect outside of the main thread, where Python does not allow it."""
        numbers = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
        # `nohup` ignores SIGHUP. A shell that starts a job in the background ignores SIGINT, which still stops it.
        ignored = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else []
        before = {number: signal.signal(number, self._receive) for number in numbers if number not in ignored}
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
        with unread_ignored():
            os.write(2, b"\nstopping after the next checkpoint; a second signal stops at once\n")


class ProgressReport(TrainerCallback):
    """Shows progress on standard error: a bar on a terminal, else a line per log entry; and each validation."""

    bar: Any = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and sys.stderr.isatty():
            total = args.max_steps if args.minutes is None else None
            self.bar = tqdm(total=total, initial=state.global_step, unit="step", dynamic_ncols=True, leave=False)

    @unread_ignored()
    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    @unread_ignored()
    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.close()

    @unread_ignored()
    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        if "loss" in logs:
            seconds = 60 * logs["minutes"]
            left = (args.max_steps - state.global_step) * seconds / state.global_step
            if args.minutes is not None:
                left = max(0.0, min(left, 60 * args.minutes - seconds))
            text = f"loss {logs['loss']:.3f}  lr {logs['learning_rate']:.2e}  {logs['tokens_per_second']:,.0f} tokens/s"
            text = f"{text}  {tqdm.format_interval(left)} left"
            if self.bar is not None:
                self.bar.set_postfix_str(text)
                return
        else:
            scores = (f"{name.partition('_')[2]} {value:.2f}" for name, value in logs.items() if "_" in name)
            average = " with the average of the best weights" if "averaged" in logs else ""
            text = f"validation{average}: {'  '.join(scores)}"
        tqdm.write(f"step {state.global_step}  {text}", file=sys.stderr)
