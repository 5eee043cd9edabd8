"""Progress lines."""

import os
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerState

from synthesizer_lab.training.callbacks import ProgressReport
from synthesizer_lab.training.options import TrainingOptions

LOG = {"loss": 2.5, "learning_rate": 1e-3, "tokens_per_second": 12345.0, "minutes": 1.0}


def _report(capsys: pytest.CaptureFixture[str], logs: dict[str, Any], **end: Any) -> str:
    ProgressReport().on_log(TrainingOptions(**end), TrainerState(global_step=5), None, logs=logs)
    return capsys.readouterr().err


def test_entries_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    # The time is that to the first end.
    ends: list[tuple[dict[str, Any], str]] = [({"max_steps": 10}, "01:00"), ({"max_steps": 6, "minutes": 9}, "00:12")]
    for end, left in [*ends, ({"max_steps": 10**9, "minutes": 1.5}, "00:30")]:
        text = f"step 5  loss 2.500  lr 1.00e-03  12,345 tokens/s  {left} left\n"
        assert _report(capsys, LOG, **end) == text
    text = _report(capsys, {"eval_loss": 2.25, "eval_bleu": 31.5}, max_steps=10)
    assert text == "step 5  validation: loss 2.25  bleu 31.50\n"
    text = _report(capsys, {"average_loss": 2.0, "averaged": [2, 4]}, max_steps=10)
    assert "average of the best weights: loss 2.00" in text


def test_training_continues_without_a_reader() -> None:
    report, args = ProgressReport(), TrainingOptions(max_steps=9)
    reader, writer = os.pipe()
    os.close(reader)
    before = os.dup(2)
    try:
        with os.fdopen(writer, "w", buffering=1) as broken:
            with redirect_stderr(broken):
                report.on_log(args, TrainerState(global_step=5), None, LOG)
            # What was not written is written when the file is closed.
            os.dup2(2, writer)
        assert os.path.samestat(os.fstat(2), Path(os.devnull).stat())
    finally:
        os.dup2(before, 2)
        os.close(before)
