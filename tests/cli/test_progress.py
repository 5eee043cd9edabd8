"""Progress: a bar on a terminal, lines elsewhere."""

import io
from typing import cast

import pytest
import torch
from rich.console import Console
from transformers import TrainerControl, TrainerState
from transformers import TrainingArguments as HuggingFaceArguments

from synthetic_attention.training.clock import TrainingClock
from synthetic_attention.training.progress import ProgressReport
from synthetic_attention.training.settings import TrainingArguments
from synthetic_attention.training.summary import format_seconds

LOG = {"loss": 2.5, "learning_rate": 1e-3, "tokens_per_second": 12345.0}
ARGUMENTS = cast(HuggingFaceArguments, None)


def _report(
    terminal: bool, seconds: float = 0.0, steps: int | None = 10, minutes: float | None = None
) -> ProgressReport:
    # An environment of its own: what the real one says of terminals and colours must not matter.
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=120, color_system=None, highlight=False, _environ={}
    )
    clock = TrainingClock(torch.device("cpu"), seconds)
    return ProgressReport(clock, TrainingArguments(steps=steps, minutes=minutes), console)


def _train(report: ProgressReport) -> str:
    state, control = TrainerState(), TrainerControl()
    with report:
        report.on_train_begin(ARGUMENTS, state, control)
        state.global_step = 5
        report.on_log(ARGUMENTS, state, control, logs=LOG)
        report.on_step_end(ARGUMENTS, state, control)
        report.on_log(ARGUMENTS, state, control, logs={"eval_loss": 2.25, "eval_bleu": 31.5})
        if report.console.is_terminal:
            report.bar.refresh()
    assert isinstance(report.console.file, io.StringIO)
    return report.console.file.getvalue()


def test_a_terminal_has_a_bar_that_goes_away() -> None:
    report = _report(terminal=True)
    text = _train(report)
    assert "step 5  loss 2.500  lr 1.00e-03  12,345 tokens/s" in text
    assert "step 5  validation: loss 2.25  bleu 31.50\n" in text
    assert not report.bar.live.is_started
    # The cursor is shown again.
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_elsewhere_each_log_entry_is_a_line() -> None:
    text = _train(_report(terminal=False))
    assert text.splitlines()[0].startswith("step 5  loss 2.500")
    assert text.splitlines()[1] == "step 5  validation: loss 2.25  bleu 31.50"
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("seconds", "steps", "minutes", "done", "left"),
    [(30.0, 10, None, 0.5, 0.0), (30.0, None, 2.0, 0.25, 90.0), (90.0, 10, 2.0, 0.75, 0.0)],
)
def test_the_end_that_comes_first_counts(
    seconds: float, steps: int | None, minutes: float | None, done: float, left: float
) -> None:
    report = _report(terminal=False, seconds=seconds, steps=steps, minutes=minutes)
    report.start = (0, seconds)
    state = TrainerState(global_step=5)
    assert report.done(state) == pytest.approx(done)
    assert report.seconds_left(state) == pytest.approx(left)


def test_seconds_are_written_as_a_clock_shows_them() -> None:
    assert [format_seconds(value) for value in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]
