"""Progress of training on standard error: a bar on a terminal, a line per log entry elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as HuggingFaceArguments

from .summary import format_seconds

if TYPE_CHECKING:
    from .clock import TrainingClock
    from .settings import TrainingArguments

__all__ = ["ProgressReport"]


class ProgressReport(TrainerCallback):
    """Shows step, loss, learning rate, tokens per second, time left, and each validation.

    Args:
        clock: the training clock.
        training: what says when training ends.
        console: where to write, by default standard error.
    """

    def __init__(self, clock: TrainingClock, training: TrainingArguments, console: Console | None = None) -> None:
        self.clock = clock
        self.training = training
        self.console = console or Console(stderr=True, highlight=False)
        # One redraw a second: more would take time from training on a small machine.
        self.bar = Progress(
            BarColumn(), TextColumn("{task.description}"), console=self.console, refresh_per_second=1, transient=True
        )
        self.task = self.bar.add_task("starting", total=1.0)
        self.start = (0, 0.0)
        self.text = ""

    def __enter__(self) -> ProgressReport:
        return self

    def __exit__(self, *error: object) -> None:
        """Take the bar off the terminal, however training ended."""
        if self.console.is_terminal:
            self.bar.stop()

    def done(self, state: TrainerState) -> float:
        """The share of the run that is done, by steps or by minutes, whichever ends it first."""
        by_steps = state.global_step / self.training.steps if self.training.steps else 0.0
        by_time = self.clock.seconds / (60 * self.training.minutes) if self.training.minutes else 0.0
        return min(1.0, max(by_steps, by_time))

    def seconds_left(self, state: TrainerState) -> float | None:
        """Seconds of training left at the speed since the start or resume; None before the first step."""
        step, seconds = state.global_step - self.start[0], self.clock.seconds - self.start[1]
        left = []
        if self.training.minutes:
            left.append(60 * self.training.minutes - self.clock.seconds)
        if self.training.steps:
            if not step:
                return None
            left.append((self.training.steps - state.global_step) * seconds / step)
        return max(0.0, min(left))

    def on_train_begin(
        self, args: HuggingFaceArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note where this part of the run starts; only the first process shows a bar."""
        self.start = (state.global_step, self.clock.seconds)
        if self.console.is_terminal and state.is_world_process_zero:
            self.bar.start()

    def on_step_end(
        self, args: HuggingFaceArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Move the bar."""
        if self.console.is_terminal:
            self.bar.update(self.task, completed=self.done(state), description=self._line(state))

    def on_log(
        self,
        args: HuggingFaceArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show a log entry, or a validation."""
        if not state.is_world_process_zero or logs is None:
            return
        if "loss" in logs:
            self.text = (
                f"loss {logs['loss']:.3f}  lr {logs['learning_rate']:.2e}  {logs['tokens_per_second']:,.0f} tokens/s"
            )
            if not self.console.is_terminal:
                self.console.print(self._line(state), soft_wrap=True)
        elif "eval_loss" in logs:
            scores = _scores(logs, "eval_")
            self.console.print(f"step {state.global_step}  validation: {scores}", soft_wrap=True)
        elif "average_loss" in logs:
            steps = ", ".join(map(str, logs["averaged"]))
            scores = _scores(logs, "average_")
            self.console.print(f"mean of the weights at {steps}  validation: {scores}", soft_wrap=True)

    def _line(self, state: TrainerState) -> str:
        left = self.seconds_left(state)
        ending = "" if left is None else f"  {format_seconds(left)} left"
        return f"step {state.global_step}  {self.text}{ending}"


def _scores(logs: dict[str, Any], prefix: str) -> str:
    return "  ".join(
        f"{name.removeprefix(prefix)} {value:.2f}" for name, value in logs.items() if name.startswith(prefix)
    )
