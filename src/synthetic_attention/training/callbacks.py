"""When training ends, and what is written on the way."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as HuggingFaceArguments

from ..tasks import UserError
from .clock import TrainingClock
from .distributed import any_process
from .failures import damage_reported

__all__ = ["LogFile", "StopRequest", "StopWhenDue"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Turns the first Ctrl-C or SIGTERM into a request to stop in order; the second one interrupts at once."""

    def __init__(self) -> None:
        self.received: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals inside; outside of the main thread, where Python has none, do nothing."""
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
        # print() may not be entered twice, and a signal may come in the middle of one.
        os.write(2, b"\nstopping as soon as a checkpoint is saved; once more stops at once, without\n")


class StopWhenDue(TrainerCallback):
    """Ends training at the step, at the minute, or on request; a regular end validates and saves."""

    def __init__(self, clock: TrainingClock, minutes: float | None, request: StopRequest) -> None:
        self.clock = clock
        self.minutes = minutes
        self.request = request

    def on_step_end(
        self, args: HuggingFaceArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Decide after each update."""
        # All processes have to stop at the same step, and neither their clocks nor their signals are the same.
        out_of_time = self.minutes is not None and any_process(self.clock.seconds >= 60 * self.minutes)
        if out_of_time or state.global_step >= state.max_steps:
            control.should_evaluate = True
        elif not any_process(self.request.received is not None):
            return
        control.should_training_stop = control.should_save = control.should_log = True


class LogFile(TrainerCallback):
    """Appends each log entry to a file as a JSON object. On resuming, entries after the checkpoint are cut off.

    Args:
        path: the file.
        rewrite: replaces its content.
        validated: the step of the last validation that the checkpoint knows of; later ones are done again.
    """

    def __init__(self, path: Path, rewrite: Callable[[str], object], validated: int) -> None:
        self.path = path
        self.rewrite = rewrite
        self.validated = validated

    def on_train_begin(
        self, args: HuggingFaceArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep what the checkpoint knows of.

        Raises:
            UserError: a line is damaged.
        """
        if not state.is_world_process_zero or not self.path.is_file():
            return
        # A kill may have cut the last line.
        with damage_reported(str(self.path)):
            lines, _, _ = self.path.read_text(encoding="utf-8").rpartition("\n")
        kept = [
            f"{line}\n"
            for number, line in enumerate(lines.split("\n") if lines else [], start=1)
            if self._is_known(line, number, state.global_step)
        ]
        self.rewrite("".join(kept))

    def _is_known(self, line: str, number: int, step: int) -> bool:
        try:
            entry = json.loads(line)
            validation = "eval_loss" in entry or "average_loss" in entry
            return bool(entry["step"] <= (self.validated if validation else step))
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{self.path}, line {number}: no entry of a log; remove the line to resume") from None

    def on_log(
        self,
        args: HuggingFaceArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append an entry."""
        if state.is_world_process_zero:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **(logs or {})}, allow_nan=False) + "\n")
