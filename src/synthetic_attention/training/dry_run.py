"""What a run would cost, measured by its first steps: everything but the writing is done as training does it."""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as HuggingFaceArguments

from ..attention import SynthesizerAttention
from ..baselines import Baseline
from ..tasks.base import Task
from .batching import TokenBatchSampler
from .device import choose_training_device, describe_device
from .failures import shortage_reported
from .hyperparameters import TrainingArguments
from .preparation import Data, Materials, Report, prepare
from .run_folder import RunFolder
from .settings import Settings
from .source import Source
from .trainer import SynthesizerTrainer

__all__ = ["count_parameters", "dry_run"]

# Steps that allocate and compile, before those that are measured; and the end of these.
_WARMUP, _STEPS, _SECONDS = 3, 50, 10.0
# Weight, gradient and two moments of Adam, in float32; Adafactor's means of rows and columns are few.
_TRAINED_BYTES, _FROZEN_BYTES = {"adamw": 16, "adafactor": 8}, 4
_ENDLESS = 10**9


def dry_run(
    task: Task[Any, Any],
    data: Path,
    settings: Settings,
    *,
    source: Source | None = None,
    device: str | None = None,
    report: Report = print,
) -> dict[str, Any]:
    """Read the data, build tokenizer and model, train a few steps, and write nothing.

    Args:
        source, device, report: as for `start_run`.

    Returns:
        Plain values: parameters, tokens, batches, speed and memory of the steps measured, and what follows from them
        for the whole training, validations not counted.

    Raises:
        UserError: what would keep a run from starting.
    """
    place = choose_training_device(device)
    task.check()
    materials = prepare(task, Data.read(task, data), settings, report, source=source)
    training = settings.training
    speed, steps, memory = _measure(task, settings, materials, place)
    tokens = round(materials.train.tokens_per_pass())
    batches = _batches_per_epoch(materials, settings)
    per_step = tokens / batches * training.gradient_accumulation_steps
    planned = _planned_steps(training, speed / per_step)
    return {
        "task": task.name,
        "device": describe_device(place),
        "dtype": training.dtype,
        "vocabulary": len(materials.tokenizer),
        **count_parameters(materials.model, training.optimizer),
        "examples": materials.train.examples_per_pass(),
        "tokens_per_epoch": tokens,
        "batches_per_epoch": batches,
        "batches_per_step": training.gradient_accumulation_steps,
        "steps": planned,
        "epochs": planned * per_step / tokens,
        "seconds": planned * per_step / speed,
        "tokens_per_second": speed,
        "measured_steps": steps,
        "peak_bytes": memory,
    }


def count_parameters(model: nn.Module, optimizer: str = "adamw") -> dict[str, int]:
    """How many parameters a model has, how many are trained, how many make attention logits; the bytes they take.

    Those that make logits are the synthesizing functions and the rows of the joint projection that serve them; in
    cross-attention, which is vanilla, nothing is counted.
    """
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    synthesizers = 0
    for module in model.modules():
        if isinstance(module, SynthesizerAttention):
            rows, projection = module.function.projected, module.in_proj
            synthesizers += sum(p.numel() for p in module.function.parameters())
            synthesizers += rows * (projection.in_features + (projection.bias is not None))
        elif isinstance(module, Baseline):
            synthesizers += module.weight_parameters
    return {
        "parameters": total,
        "trainable": trained,
        "in_synthesizers": synthesizers,
        "state_bytes": trained * _TRAINED_BYTES[optimizer] + (total - trained) * _FROZEN_BYTES,
    }


class _Stopwatch(TrainerCallback):
    """Ends training when enough steps were measured."""

    def __init__(self, look: Callable[[], tuple[float, int]]) -> None:
        self._look = look
        self._seen: list[tuple[float, int]] = []

    def on_step_end(
        self, args: HuggingFaceArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note the time and the tokens so far."""
        if state.global_step < _WARMUP:
            return
        self._seen.append(self._look())
        enough = self.steps and self._seen[-1][0] - self._seen[0][0] >= _SECONDS
        if enough or self.steps >= _STEPS:
            control.should_training_stop = True

    @property
    def steps(self) -> int:
        """How many were measured."""
        return max(0, len(self._seen) - 1)

    @property
    def tokens_per_second(self) -> float:
        """The speed of the steps measured."""
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / (end - start)


class _Rehearsal(SynthesizerTrainer):
    """Trains without checkpoints."""

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        return


def _measure(
    task: Task[Any, Any], settings: Settings, materials: Materials, device: torch.device
) -> tuple[float, int, int]:
    """Tokens per second, the steps that this is from, and the highest memory on the way."""
    training = replace(
        settings.training, steps=_WARMUP + _STEPS, minutes=None, eval_interval=_ENDLESS, log_interval=_ENDLESS
    )
    # Trainer wants a folder, though nothing is written into it.
    with tempfile.TemporaryDirectory() as folder:
        trainer = _Rehearsal(
            materials.model,
            task=task,
            settings=replace(settings, training=training),
            run=RunFolder(Path(folder)),
            tokenizer=materials.tokenizer,
            train=materials.train,
            validation=materials.validation,
            device=device,
        )

        def look() -> tuple[float, int]:
            # Counting waits for the device, so that the clock shows what was done and not what was queued.
            tokens = trainer.count_tokens()
            return trainer.clock.seconds, tokens

        stopwatch = _Stopwatch(look)
        trainer.add_callback(stopwatch)
        less_memory = f"lower --set batch_tokens=… (now {training.batch_tokens})"
        with shortage_reported(less_memory, lambda: "nothing was written"):
            trainer.run_training()
    return stopwatch.tokens_per_second, stopwatch.steps, _peak_bytes(device)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    # Of the whole process; Linux counts in kilobytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _batches_per_epoch(materials: Materials, settings: Settings) -> int:
    lengths, draw = materials.train.lengths(), materials.train.draw
    return len(TokenBatchSampler(lengths, settings.training.batch_tokens, settings.seed, 1, draw).epoch(0))


def _planned_steps(training: TrainingArguments, steps_per_second: float) -> int:
    """Steps until the first of the two ends."""
    by_time = None if training.minutes is None else round(60 * training.minutes * steps_per_second)
    return min(steps for steps in (training.steps, by_time) if steps is not None)
