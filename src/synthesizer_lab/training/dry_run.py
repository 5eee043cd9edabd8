"""The cost of a run, measured in its first steps. Nothing is written."""

from __future__ import annotations

import math
import resource
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import TrainerCallback, TrainerControl, TrainerState

from ..tasks import get_task
from ..tasks.base import Task, tokens_name
from .device import any_process, describe_device, shortage_reported
from .run import Report, join_processes, prepare_inputs
from .run_folder import PretrainedRun, RunFolder
from .settings import Settings
from .trainer import SynthesizerTrainer

# The first steps allocate and compile; then steps are measured until one of the limits.
_WARMUP, _STEPS, _SECONDS = 3, 50, 10.0
_NEVER = 10**9


def dry_run(
    task: Task,
    data: Path,
    settings: Settings,
    *,
    pretrained: PretrainedRun | None = None,
    batches_per_update: int | None = None,
    device: str | None = None,
    report: Report = print,
) -> dict[str, Any]:
    """Read the data, build tokenizer and model, and train a few steps; the arguments are those of `start_run`.

    The result has parameters, tokens, speed and memory of the measured steps, and the estimates for the whole training
    without validation, as plain values.
    """
    place, settings = join_processes(settings, batches_per_update, device)
    inputs, training = prepare_inputs(task, data, settings, report, pretrained=pretrained), settings.training
    # One step more than are measured: the last one would save and validate.
    steps: dict[str, Any] = {"max_steps": _WARMUP + _STEPS + 1, "eval_steps": _NEVER, "logging_steps": _NEVER}
    short = settings.with_training(minutes=None, report_to="none", **steps)
    # Trainer needs a folder.
    with tempfile.TemporaryDirectory() as folder:
        trainer = SynthesizerTrainer(replace(inputs, settings=short), RunFolder(Path(folder)), place)
        stopwatch = _Stopwatch(trainer)
        trainer.add_callback(stopwatch)
        with shortage_reported(f"lower batch_tokens (now {training.batch_tokens})", lambda: "nothing was written"):
            trainer.run_training()
    (start, before), (end, after) = stopwatch.seen[0], stopwatch.seen[-1]
    measured, tokens = len(stopwatch.seen) - 1, inputs.train.tokens_per_pass()
    speed, per_step = (after - before) / (end - start), (after - before) / measured
    by_time = math.inf if training.minutes is None else 60 * training.minutes * speed / per_step
    planned = round(min(by_time, training.max_steps if training.max_steps > 0 else math.inf))
    if place.type == "cuda":
        peak = torch.cuda.max_memory_reserved(place)
    else:
        # Of the whole process; Linux counts in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "task": task.name,
        "device": describe_device(place),
        "dtype": "bfloat16" if training.bf16 else "float32",
        "parameters": inputs.model.num_parameters(only_trainable=True),
        "examples": len(inputs.train),
        "tokens_per_epoch": round(tokens),
        "tokens_per_step": round(per_step),
        "steps": planned,
        "epochs": planned * per_step / tokens,
        "seconds": planned * per_step / speed,
        "tokens_per_second": speed,
        "measured_steps": measured,
        "peak_bytes": peak,
    }


def describe_dry_run(estimate: Mapping[str, Any]) -> str:
    """The result of `dry_run` for a terminal: a table with two columns."""
    task = get_task(estimate["task"])
    rows = {
        "parameters": "{parameters:,}",
        "an epoch": f"{{examples:,}} {task.unit}, {{tokens_per_epoch:,}} {tokens_name(task)}",
        "training": "{steps:,} steps of {tokens_per_step:,} tokens, {epochs:.1f} epochs",
        "device": "{device}, {dtype}",
        "speed": f"{{tokens_per_second:,.0f}} {tokens_name(task)}/s over {{measured_steps}} steps",
        "memory": "{peak:,.0f} MB at most in these steps, everything included",
        "time": "{time}, without validation",
    }
    shown = {**estimate, "peak": estimate["peak_bytes"] / 1e6, "time": tqdm.format_interval(estimate["seconds"])}
    return "\n".join(f"{name:<10}  {text.format(**shown)}" for name, text in rows.items())


class _Stopwatch(TrainerCallback):
    """Notes time and tokens after each step, and stops training after enough of them."""

    def __init__(self, trainer: SynthesizerTrainer) -> None:
        self.trainer = trainer
        self.seen: list[tuple[float, int]] = []

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step >= _WARMUP:
            # Counting waits for the device, so the time is that of finished work.
            tokens = self.trainer.count_tokens()
            self.seen.append((self.trainer.clock.seconds, tokens))
            enough = len(self.seen) > 1 and self.seen[-1][0] - self.seen[0][0] >= _SECONDS
            # Processes must stop at the same step, but their clocks differ.
            control.should_training_stop = any_process(enough or len(self.seen) > _STEPS)
