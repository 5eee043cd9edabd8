"""The training clock, stopping on a signal, and progress on a terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar, NamedTuple

import psutil  # type: ignore[import-untyped]
import torch
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import TrainerCallback, TrainerState

from ..errors import unread_ignored

# CPU times are counted in hundredths of a second.
_LEAST_SECONDS = 2.0
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


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


class Load(NamedTuple):
    """Seconds so far: of the clock, of this process, and of all processes on the cores that this one may use."""

    wall: float
    own: float
    everyone: float


def usable_cores() -> Sequence[int]:
    """The cores that this process may use: a batch system gives a job some of a machine."""
    return [*os.sched_getaffinity(0)] if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def read_load() -> Load:
    """The load of the cores of this process; time that a hypervisor gave to others counts as theirs."""
    times = psutil.cpu_times(percpu=True)
    cores = [core for core in usable_cores() if core < len(times)]
    busy = sum(getattr(times[core], name, 0.0) for core in cores for name in ("user", "nice", "system", "steal"))
    return Load(time.perf_counter(), time.process_time(), busy)


class BusyMachine:
    """Finds out whether training on a CPU is slow because other processes use the cores of its threads.

    Threads of one operation wait for the slowest of them: with one core too few, all do.
    """

    remedy: ClassVar[str] = "run fewer jobs at a time, or give each fewer threads (--threads 1)"

    def __init__(self, read: Callable[[], Load] = read_load, cores: int | None = None) -> None:
        self._read, self._cores = read, cores or len(usable_cores())
        self._last, self._undisturbed, self._is_told = read(), 0.0, False

    def warning(self, tokens_per_second: float) -> str | None:
        """A warning, once, if others disturbed training since the last call, and always did or halved its speed."""
        now, threads = self._read(), torch.get_num_threads()
        if self._is_told or now.wall - self._last.wall < _LEAST_SECONDS:
            return None
        wall, own, everyone = (new - old for new, old in zip(now, self._last, strict=True))
        self._last, others = now, (everyone - own) / wall
        if threads == 1 or self._cores - others >= threads - 0.5:
            self._undisturbed = max(self._undisturbed, tokens_per_second)
            return None
        if tokens_per_second > self._undisturbed / 2 > 0:
            return None
        self._is_told = True
        before = f", {self._undisturbed:,.0f} before" if self._undisturbed else ""
        return (
            f"WARNING: the machine is busy: other processes use {others:.1f} of {self._cores} cores, and training has "
            f"{threads} threads ({tokens_per_second:,.0f} tokens/s{before}); {self.remedy}"
        )


class StopRequest:
    """Turns the first Ctrl-C, SIGTERM or SIGHUP into a request to stop after a checkpoint; the second one interrupts.

    With `at_once`, while nothing is trained, the first one interrupts.
    """

    received: int | None = None
    at_once: bool = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals inside; no effect outside of the main thread, where Python does not allow it."""
        numbers = _SIGNALS if threading.current_thread() is threading.main_thread() else []
        # As `nohup` has it.
        numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._receive) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        interrupts = self.at_once or self.received is not None
        self.received = number
        if interrupts:
            raise KeyboardInterrupt
        # A signal may arrive inside of print(), which is not reentrant.
        with unread_ignored():
            os.write(2, b"\nstopping after the next checkpoint; a second signal stops at once\n")


class ProgressReport(TrainerCallback):
    """Shows progress on standard error: a bar on a terminal, else a line per log entry; and each validation."""

    bar: Any = None
    machine: BusyMachine | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.machine = BusyMachine() if state.is_world_process_zero and args.use_cpu else None
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
            if self.machine is not None and (warning := self.machine.warning(logs["tokens_per_second"])):
                tqdm.write(warning, file=sys.stderr)
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
