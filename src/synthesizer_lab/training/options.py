"""The options of training, by their names in Hugging Face's `TrainingArguments` where it has them.

This module imports neither PyTorch nor transformers: the command line makes its flags from these fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import ge, gt, lt
from typing import Any, Literal, get_type_hints

from ..errors import UserError, check_value

Sharding = Literal["none", "fsdp"]

# Schedules that do not depend on the number of steps.
_OPEN_SCHEDULES = ("inverse_sqrt", "constant", "constant_with_warmup")
_LIMITS = (("least", "at least", ge), ("above", "more than", gt), ("below", "less than", lt))


# ruff: noqa: RUF009 (dataclass fields are made by `_option`, which calls `field`)
def _option(default: Any, meaning: str, **limits: Any) -> Any:
    """A field with its meaning and its limits: `least`, `above` and `below` (both excluded)."""
    return field(default=default, metadata={"help": meaning, **limits})


@dataclass
class TrainingOptions:
    """Every argument of training that a preset or `--set` can change; `metadata["help"]` of a field has its meaning.

    Raises:
        UserError: a value has the wrong type or is out of range.
    """

    max_steps: int = _option(-1, "stop after this number of updates; -1: only `minutes` ends training")
    minutes: float | None = _option(
        None, "stop after this many minutes of training; validation and saving are not counted", above=0
    )
    batch_tokens: int = _option(4096, "source and target tokens in a batch, without padding", above=0)
    eval_batch_tokens: int = _option(4096, "tokens in a batch of the validation during training", above=0)
    gradient_accumulation_steps: int = _option(1, "batches per update in each process", above=0, below=10**6)
    optim: Literal["adamw_torch_fused", "adamw_torch", "adafactor", "sgd"] = _option(
        "adamw_torch_fused",
        "the optimizer; `adafactor` is configured as for T5: updates are scaled by the size of the weights, so "
        "learning rates are relative, about 0.01",
    )
    learning_rate: float = _option(1e-3, "the highest learning rate, reached after warm-up", above=0)
    warmup_steps: int = _option(1000, "updates over which the learning rate rises linearly", least=0)
    constant_steps: int = _option(0, "with `inverse_sqrt`: keep the highest learning rate until this update", least=0)
    lr_scheduler_type: Literal["inverse_sqrt", "constant", "constant_with_warmup", "linear", "cosine", "polynomial"] = (
        _option("inverse_sqrt", "the learning rate schedule; all but the first three need `max_steps`")
    )
    adam_beta1: float = _option(0.9, "AdamW's β₁", least=0, below=1)
    adam_beta2: float = _option(0.98, "AdamW's β₂", least=0, below=1)
    adam_epsilon: float = _option(1e-9, "AdamW's ε", above=0)
    weight_decay: float = _option(0.0, "weight decay", least=0)
    logit_scale: float = _option(
        0.1,
        "with `adafactor`: the smallest size that counts for attention logits and gates, which start near zero",
        above=0,
    )
    max_grad_norm: float = _option(1.0, "clip gradients to this norm; 0: no clipping", least=0)
    label_smoothing_factor: float = _option(0.0, "label smoothing in training, not in validation", least=0, below=1)
    eval_steps: int = _option(1000, "updates between validations; each one saves a checkpoint", above=0)
    logging_steps: int = _option(50, "updates between log entries", above=0)
    on_long: Literal["error", "truncate", "drop"] = _option(
        "error", "how to handle texts over max_position_embeddings; drop leaves them out of training and validation"
    )
    tokenizer_characters: int = _option(
        50_000_000, "a new tokenizer is trained on a sample of this many characters of the training text", above=0
    )
    bf16: bool = _option(False, "bfloat16 autocast; weights, gradients and optimizer states stay in float32")
    gradient_checkpointing: bool = _option(
        False, "store the inputs of the blocks only, and compute the rest again in the backward: less memory, slower"
    )
    sharding: Sharding = _option(
        "none", "`fsdp`: each of several processes stores a part of parameters, gradients and optimizer states"
    )
    torch_compile: bool = _option(False, "compile the layers of the model with torch.compile, once for all lengths")
    average_checkpoints: int = _option(
        1,
        "at the end, average the weights of up to this many best validations, and keep the average if it is at least "
        "as good; 1: no averaging",
        above=0,
    )
    report_to: str | list[str] = _option("none", "loggers, such as `tensorboard` or `wandb`")
    run_name: str | None = _option(None, "the name of the run in these loggers")
    seed: int = _option(0, "seed of weights, batches and dropout", least=0, below=2**32)

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(TrainingOptions).items():
            value, about = getattr(self, name), TrainingOptions.__dataclass_fields__[name].metadata
            check_value(name, value, kind)
            for limit, words, holds in _LIMITS:
                if limit in about and value is not None and not holds(value, about[limit]):
                    raise UserError(f"got {name}={value}; expected {words} {about[limit]}")
        if self.sharding == "fsdp" and self.optim == "adafactor":
            raise UserError("got optim=adafactor with sharding fsdp; expected adamw_torch_fused, adamw_torch or sgd")
        if self.max_steps == 0 or self.max_steps < -1:
            raise UserError(f"got max_steps={self.max_steps}; expected more than 0, or -1")
        if self.max_steps == -1 and self.minutes is None:
            raise UserError("got neither max_steps nor minutes; expected at least one of them to end training")
        if self.max_steps == -1 and self.lr_scheduler_type not in _OPEN_SCHEDULES:
            raise UserError(f"got lr_scheduler_type={self.lr_scheduler_type!r} without max_steps; set max_steps")

    def check_loggers(self) -> None:
        """Raise UserError for loggers that are not installed. A run is read without its loggers."""
        from transformers.integrations import get_available_reporting_integrations  # type: ignore[attr-defined]

        loggers = {self.report_to} if isinstance(self.report_to, str) else {*self.report_to}
        if unknown := loggers - {"none", "all", *get_available_reporting_integrations()}:
            raise UserError(f"got report_to={', '.join(unknown)}, which is unknown or not installed")

    def is_complete(self, step: int, seconds: float) -> bool:
        """Whether training ends at this step or after these seconds."""
        return 0 < self.max_steps <= step or (self.minutes is not None and seconds >= 60 * self.minutes)
