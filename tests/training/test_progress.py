"""Progress lines."""

from typing import Any

import pytest
from transformers import TrainerState

from synthetic_attention.training.arguments import SynthesizerTrainingArguments
from synthetic_attention.training.callbacks import ProgressReport, format_seconds

LOG = {"loss": 2.5, "learning_rate": 1e-3, "tokens_per_second": 12345.0, "minutes": 1.0}


def _report(capsys: pytest.CaptureFixture[str], logs: dict[str, Any], **end: Any) -> str:
    ProgressReport().on_log(SynthesizerTrainingArguments(**end), TrainerState(global_step=5), None, logs=logs)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("end", "left"),
    [
        ({"max_steps": 10}, "1:00"),
        ({"max_steps": 10**9, "minutes": 1.5}, "0:30"),
        ({"max_steps": 6, "minutes": 9}, "0:12"),
    ],
)
def test_a_log_entry_is_a_line_with_the_time_to_the_first_end(
    capsys: pytest.CaptureFixture[str], end: dict[str, Any], left: str
) -> None:
    text = _report(capsys, LOG, **end)
    assert text == f"step 5  loss 2.500  lr 1.00e-03  12,345 tokens/s  {left} left\n"


def test_a_validation_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = _report(capsys, {"eval_loss": 2.25, "eval_bleu": 31.5}, max_steps=10)
    assert text == "step 5  validation: loss 2.25  bleu 31.50\n"
    text = _report(capsys, {"average_loss": 2.0, "averaged": [2, 4]}, max_steps=10)
    assert "2, 4" in text
    assert "loss 2.00" in text


def test_seconds_are_written_as_a_clock_shows_them() -> None:
    assert [format_seconds(value) for value in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


def test_a_terminal_has_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    report, args = ProgressReport(), SynthesizerTrainingArguments(max_steps=10)
    report.on_train_begin(args, TrainerState(), None)
    for step in range(1, 6):
        report.on_step_end(args, TrainerState(global_step=step), None)
    report.on_log(args, TrainerState(global_step=5), None, logs=LOG)
    report.bar.refresh()
    report.on_train_end(args, TrainerState(global_step=5), None)
    text = capsys.readouterr().err
    assert "5/10" in text
    assert "12,345 tokens/s" in text
    assert text.endswith("\r")
