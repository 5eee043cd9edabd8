"""The training arguments: Hugging Face's `Seq2SeqTrainingArguments`, with other defaults and a few additions."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from operator import ge, gt, lt
from typing import Any, get_type_hints

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.integrations import get_available_reporting_integrations  # type: ignore[attr-defined]

from ..errors import UserError, check_value
from .options import Sharding, TrainingOptions

__all__ = ["Sharding", "SynthesizerTrainingArguments", "argument_types"]

# The number of steps of a run that only minutes end; Trainer needs a number.
_ENDLESS = 10**9
# Schedules that do not depend on the number of steps.
_OPEN_SCHEDULES = ("inverse_sqrt", "constant", "constant_with_warmup")
_LIMITS = (("least", "at least", ge), ("above", "more than", gt), ("below", "less than", lt))


@dataclass
class SynthesizerTrainingArguments(TrainingOptions, Seq2SeqTrainingArguments):  # type: ignore[misc]
    """The options of training for Trainer. Other fields of `TrainingArguments` cannot be set by presets or `--set`.

    Without `output_dir` the arguments only hold values: transformers initialises devices and process groups only for
    arguments with a folder (`for_trainer`).

    Raises:
        UserError: a value has the wrong type or is out of range.
    """

    def __post_init__(self) -> None:
        if self.output_dir is not None:
            super().__post_init__()
            return
        for entry in fields(TrainingOptions):
            name, value = entry.name, getattr(self, entry.name)
            check_value(name, value, argument_types()[name])
            for limit, words, holds in _LIMITS:
                if limit in entry.metadata and value is not None and not holds(value, entry.metadata[limit]):
                    raise UserError(f"got {name}={value}; expected {words} {entry.metadata[limit]}")
        if self.sharding == "fsdp" and self.optim == "adafactor":
            raise UserError("got optim=adafactor with sharding fsdp; expected adamw_torch_fused, adamw_torch or sgd")
        loggers = {self.report_to} if isinstance(self.report_to, str) else {*self.report_to}
        if unknown := loggers - {"none"} and loggers - {"none", "all", *get_available_reporting_integrations()}:
            raise UserError(f"got report_to={', '.join(unknown)}, which is unknown or not installed")
        if self.max_steps == 0 or self.max_steps < -1:
            raise UserError(f"got max_steps={self.max_steps}; expected more than 0, or -1")
        if self.max_steps == -1 and self.minutes is None:
            raise UserError("got neither max_steps nor minutes; expected at least one of them to end training")
        if self.max_steps == -1 and self.lr_scheduler_type not in _OPEN_SCHEDULES:
            raise UserError(f"got lr_scheduler_type={self.lr_scheduler_type!r} without max_steps; set max_steps")

    @property
    def place_model_on_device(self) -> bool | None:
        """False keeps Trainer from moving the whole model to a device that may not hold it."""
        return False if self.sharding == "fsdp" else super().place_model_on_device

    def to_dict(self) -> dict[str, Any]:
        """The arguments that can be set, as plain values."""
        return {name: getattr(self, name) for name in argument_types()}

    def is_complete(self, step: int, seconds: float) -> bool:
        """Whether training ends at this step or after these seconds."""
        return 0 < self.max_steps <= step or (self.minutes is not None and seconds >= 60 * self.minutes)

    def for_trainer(self, output_dir: str, device: torch.device, **changes: Any) -> SynthesizerTrainingArguments:
        """The same arguments for a Trainer that writes to `output_dir`; `changes` are further arguments."""
        changes = {
            "max_steps": _ENDLESS if self.max_steps == -1 else self.max_steps,
            # Deprecated in newer versions of transformers; `SynthesizerTrainer` reads ours.
            "gradient_checkpointing": None,
            # The Trainer would compile the whole model; we compile its layers.
            "torch_compile": False,
            # After each validation.
            "save_strategy": "steps",
            "save_steps": self.eval_steps,
            # It would wait for the device at each step, and hide a loss that is not finite.
            "logging_nan_inf_filter": False,
            "dataloader_pin_memory": device.type == "cuda",
            "remove_unused_columns": False,
            # The sampler starts at the batch that is due, whatever number of processes took those before.
            "ignore_data_skip": True,
            # Without it, the processes of torchrun would train separate models on a CPU.
            "use_cpu": device.type == "cpu",
            # Each process takes every n-th batch, whatever number of examples it has. It does not wait for its copy.
            "accelerator_config": {"even_batches": False, "non_blocking": device.type == "cuda"},
            "ddp_find_unused_parameters": False,
            "disable_tqdm": True,
            "log_level": "error",
            "log_level_replica": "error",
            **changes,
        }
        arguments = replace(self, output_dir=output_dir, **changes)
        # Several GPUs need several processes; Trainer would split each batch among the GPUs of this process.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        return arguments


@cache
def argument_types() -> dict[str, Any]:
    """The types of the arguments that can be set, by name."""
    return get_type_hints(TrainingOptions)
