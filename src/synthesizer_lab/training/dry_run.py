"""The cost of a run, measured in its first steps. Nothing is written."""

from __future__ import annotations

import math
import resource
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from torch import nn
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import TrainerCallback, TrainerControl, TrainerState

from synthetic_attention.attention import SelfAttention

from ..errors import UserError
from ..tasks import get_task
from ..tasks.base import Task, build_model, tokens_name
from .device import any_process, describe_device, shortage_reported
from .run import Report, building_errors, join_processes, prepare_inputs
from .run_folder import PretrainedRun, RunFolder
from .settings import Settings
from .trainer import SynthesizerTrainer

# The first steps allocate and compile; then steps are measured until one of the limits.
_WARMUP, _STEPS, _SECONDS = 3, 50, 10.0
_NEVER = 10**9
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def dry_run(
    task: Task[Any, Any],
    data: Path,
    settings: Settings,
    *,
    pretrained: PretrainedRun | None = None,
    batches_per_update: int | None = None,
    device: str | None = None,
    report: Report = print,
) -> dict[str, Any]:
    """Read the data, build tokenizer and model, and train a few steps; the arguments are those of `start_run`.

    The result has parameters, tokens, batches, speed and memory of the measured steps, and the estimates for the whole
    training without validation, as plain values.
    """
    place, settings = join_processes(settings, batches_per_update, device)
    training, processes = settings.training, PartialState().num_processes
    # Before the data is read, which can take long.
    with building_errors(), torch.device("meta"):
        # Weights, gradients, and AdamW's two states.
        copies = 4 if training.optim.startswith("adamw") else 2
        shards = processes if training.sharding == "fsdp" else 1
        needed = build_model(task, settings.config).num_parameters() * 4 * copies // shards
    available = total_memory(place)
    if needed > available:
        raise UserError(
            f"training a model of this size needs at least {needed / 1e9:,.1f} GB of memory; got "
            f"{available / 1e9:,.1f} GB ({place.type}). Lower num_layers, d_model, d_ff, vocab_size, "
            "max_position_embeddings"
        )
    inputs = prepare_inputs(task, data, settings, report, pretrained=pretrained)
    tokens = inputs.train.tokens_per_pass()
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
    speed, per_step = (after - before) / (end - start), (after - before) / (len(stopwatch.seen) - 1)
    batches_per_step = training.gradient_accumulation_steps * processes
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
        "vocabulary": len(inputs.tokenizer),
        **count_parameters(inputs.model),
        "examples": len(inputs.train),
        "tokens_per_epoch": round(tokens),
        "batches_per_epoch": round(tokens * batches_per_step / per_step),
        "batches_per_step": batches_per_step,
        "steps": planned,
        "epochs": planned * per_step / tokens,
        "seconds": planned * per_step / speed,
        "tokens_per_second": speed,
        "measured_steps": len(stopwatch.seen) - 1,
        "least_bytes": needed,
        "peak_bytes": peak,
        "device_bytes": available,
    }


def total_memory(device: torch.device) -> int:
    """Bytes of the GPU, or of the machine, or fewer if its container may use fewer."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(_CGROUP.read_text()))
    except (OSError, ValueError):
        return total


def count_parameters(model: nn.Module) -> dict[str, int]:
    """The parameters of a model: all, trainable, and those of synthesizing functions (not of cross-attention)."""
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "in_synthesizers": sum(m.weight_parameters for m in model.modules() if isinstance(m, SelfAttention)),
    }


def describe_dry_run(estimate: Mapping[str, Any]) -> str:
    """The result of `dry_run` for a terminal: a table with two columns."""
    task, found = get_task(estimate["task"]), SimpleNamespace(**estimate)
    epoch = f"{found.examples:,} {task.unit}, {found.tokens_per_epoch:,} {tokens_name(task)}"
    accumulated = f" of {found.batches_per_step} batches" if found.batches_per_step > 1 else ""
    rows = {
        "parameters": f"{found.parameters:,} ({found.trainable:,} trained, {found.in_synthesizers:,} in synthesizers)",
        "vocabulary": f"{found.vocabulary:,} tokens",
        "an epoch": f"{epoch} in {found.batches_per_epoch:,} batches",
        "training": f"{found.steps:,} steps{accumulated}, {found.epochs:.1f} epochs",
        "device": f"{found.device}, {found.dtype}",
        "speed": f"{found.tokens_per_second:,.0f} {tokens_name(task)}/s over {found.measured_steps} steps",
        "memory": f"{found.peak_bytes / 1e6:,.0f} MB at most in these steps, everything included, of "
        f"{found.device_bytes / 1e6:,.0f} MB; at least {found.least_bytes / 1e6:,.0f} MB for model and optimizer",
        "time": f"{tqdm.format_interval(found.seconds)}, without validation",
    }
    return "\n".join(f"{name:<10}  {text}" for name, text in rows.items())


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
