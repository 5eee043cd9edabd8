"""The training arguments: Hugging Face's `Seq2SeqTrainingArguments`, with other defaults and a few additions."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, fields, replace
from functools import cache
from operator import ge, gt, lt
from typing import Any, Literal

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.integrations import get_available_reporting_integrations  # type: ignore[attr-defined]

from ..data.examples import OnLong
from ..errors import UserError
from ..validation import check_value

# The number of steps of a run that only minutes end; Trainer needs a number.
_ENDLESS = 10**9
# Schedules that do not depend on the number of steps.
_OPEN_SCHEDULES = ("inverse_sqrt", "constant", "constant_with_warmup")
Sharding = Literal["none", "fsdp"]
_LIMITS = (("least", "at least", ge), ("above", "more than", gt), ("below", "less than", lt))


# ruff: noqa: RUF009 (dataclass fields are made by `_argument`, which calls `field`)
def _argument(default: Any, meaning: str, **limits: Any) -> Any:
    """A field with its meaning and its limits: `least`, `above` and `below` (both excluded)."""
    return field(default=default, metadata={"help": meaning, **limits})


@dataclass
class SynthesizerTrainingArguments(Seq2SeqTrainingArguments):
    """Every argument of training that a preset or `--set` can change; `metadata["help"]` of a field has its meaning.

    Fields of `TrainingArguments` that are not declared here cannot be set. Without `output_dir` the arguments only hold
    values: transformers initialises devices and process groups only for arguments with a folder (`for_trainer`).

    Raises:
        UserError: a value has the wrong type or is out of range.
    """

    max_steps: int = _argument(-1, "stop after this number of updates; -1: only `minutes` ends training")
    minutes: float | None = _argument(
        None, "stop after this many minutes of training; validation and saving are not counted", above=0
    )
    batch_tokens: int = _argument(4096, "source and target tokens in a batch, without padding", above=0)
    eval_batch_tokens: int = _argument(4096, "tokens in a batch of validation or generation", above=0)
    gradient_accumulation_steps: int = _argument(1, "batches per update in each process", above=0, below=10**6)
    optim: Literal["adamw_torch_fused", "adamw_torch", "adafactor", "sgd"] = _argument(
        "adamw_torch_fused",
        "the optimizer; `adafactor` is configured as for T5: updates are scaled by the size of the weights, so "
        "learning rates are relative, about 0.01",
    )
    learning_rate: float = _argument(1e-3, "the highest learning rate, reached after warm-up", above=0)
    warmup_steps: int = _argument(1000, "updates over which the learning rate rises linearly", least=0)
    constant_steps: int = _argument(0, "with `inverse_sqrt`: keep the highest learning rate until this update", least=0)
    lr_scheduler_type: Literal["inverse_sqrt", "constant", "constant_with_warmup", "linear", "cosine", "polynomial"] = (
        _argument("inverse_sqrt", "the learning rate schedule; all but the first three need `max_steps`")
    )
    adam_beta1: float = _argument(0.9, "AdamW's β₁", least=0, below=1)
    adam_beta2: float = _argument(0.98, "AdamW's β₂", least=0, below=1)
    adam_epsilon: float = _argument(1e-9, "AdamW's ε", above=0)
    weight_decay: float = _argument(0.0, "weight decay", least=0)
    logit_scale: float = _argument(
        0.1,
        "with `adafactor`: the smallest size that counts for attention logits and gates, which start near zero",
        above=0,
    )
    max_grad_norm: float = _argument(1.0, "clip gradients to this norm; 0: no clipping", least=0)
    label_smoothing_factor: float = _argument(0.0, "label smoothing in training, not in validation", least=0, below=1)
    eval_steps: int = _argument(1000, "updates between validations; each one saves a checkpoint", above=0)
    logging_steps: int = _argument(50, "updates between log entries", above=0)
    on_long: OnLong = _argument("error", "training examples longer than max_position_embeddings")
    streaming: bool = _argument(
        False, "tokenize the training text while it is read, in its order, shuffled within windows of 8 MB"
    )
    tokenizer_characters: int = _argument(
        50_000_000, "a new tokenizer is trained on a sample of this many characters of the training text", above=0
    )
    bf16: bool = _argument(False, "bfloat16 autocast; weights, gradients and optimizer states stay in float32")
    gradient_checkpointing: bool = _argument(
        False, "store the inputs of the blocks only, and compute the rest again in the backward: less memory, slower"
    )
    sharding: Sharding = _argument(
        "none", "`fsdp`: each of several processes stores a part of parameters, gradients and optimizer states"
    )
    torch_compile: bool = _argument(False, "compile the layers of the model with torch.compile, once for all lengths")
    average_checkpoints: int = _argument(
        1,
        "at the end, average the weights of up to this many best validations, and keep the average if it is at least "
        "as good; 1: no averaging",
        above=0,
    )
    report_to: str | list[str] = _argument("none", "loggers, such as `tensorboard` or `wandb`")
    run_name: str | None = _argument(None, "the name of the run in these loggers")
    seed: int = _argument(0, "seed of weights, batches and dropout", least=0, below=2**32)

    def __post_init__(self) -> None:
        if self.output_dir is not None:
            super().__post_init__()
            return
        types = argument_types()
        for entry in fields(self):
            if entry.name in types:
                name, value = entry.name, getattr(self, entry.name)
                check_value(name, value, types[name])
                for limit, words, holds in _LIMITS:
                    if limit in entry.metadata and value is not None and not holds(value, entry.metadata[limit]):
                        raise UserError(f"got {name}={value}; expected {words} {entry.metadata[limit]}")
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
    return inspect.get_annotations(SynthesizerTrainingArguments, eval_str=True)
