"""How to train: what a preset and `--set` say beside the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ..data.examples import LONG_CHOICES, Long
from ..tasks import UserError
from .device import DTYPES

__all__ = ["TrainingArguments"]

_ZERO_OR_MORE = ("weight_decay", "warmup_steps", "constant_steps", "beta1", "beta2", "max_grad_norm")
_CHOICES = {
    "long_sentences": LONG_CHOICES,
    "dtype": DTYPES,
    "optimizer": ("adamw", "adafactor"),
    "schedule": ("inverse_sqrt", "constant"),
}


@dataclass(frozen=True, kw_only=True)
class TrainingArguments:
    """How to train. Every field can be set by a preset and by `--set field=value`.

    Args:
        steps: stop after this many updates; None where only the minutes count.
        minutes: stop after this long on the training clock, which stands still while validating and saving.
        batch_tokens: real source and target tokens in a batch, padding not counted.
        gradient_accumulation_steps: batches per update.
        optimizer: "adamw"; or "adafactor", as T5 is trained: it keeps row and column means in place of Adam's two
            moments, scales each update by the size of the weights (so rates are relative, about 0.01), and clips
            updates.
        learning_rate: the highest, reached after warm-up.
        warmup_steps: updates over which the rate rises linearly.
        constant_steps: updates from the first on that have the highest rate, those of warm-up apart, before it falls.
        schedule: "inverse_sqrt", the rate falls with the inverse square root of the step; or "constant", it never does.
        beta1, beta2, epsilon: of AdamW.
        weight_decay: of either optimizer.
        logit_scale: of Adafactor, which scales updates by the weights: what parameters that are logits, and start near
            zero, count as at least.
        max_grad_norm: gradients are scaled down to this norm; 0 for any.
        eval_interval: updates between validations, each followed by a checkpoint.
        log_interval: updates between log entries.
        eval_batch_tokens: source tokens in a batch of generation.
        long_sentences: what becomes of pairs longer than max_position_embeddings: "error", "drop", "truncate".
        dtype: "float32"; or "bfloat16" to compute in it where PyTorch's autocast deems that safe (matrix products,
            attention), with weights, gradients, optimizer state and sums in float32 all the same.
        compile: compile the training step's model with `torch.compile`, once for all lengths.
        average_checkpoints: at the end, average the weights of the best validations, this many of them at most, and
            take the average for the best model if it validates as well; 1 for none. A checkpoint keeps these weights.
    """

    steps: int | None = None
    minutes: float | None = None
    batch_tokens: int = 4096
    gradient_accumulation_steps: int = 1
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    warmup_steps: int = 1000
    constant_steps: int = 0
    schedule: str = "inverse_sqrt"
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    logit_scale: float = 0.1
    max_grad_norm: float = 1.0
    eval_interval: int = 1000
    log_interval: int = 50
    eval_batch_tokens: int = 4096
    long_sentences: Long = "error"
    dtype: str = "float32"
    compile: bool = False
    average_checkpoints: int = 1

    def __post_init__(self) -> None:
        for entry in fields(self):
            value, default = getattr(self, entry.name), entry.default
            kind = {"steps": int, "minutes": float}.get(entry.name, type(default))
            if value is None and default is None:
                continue
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, entry.name, float(value))
            elif type(value) is not kind:
                raise UserError(f"got {entry.name}={value!r}; expected {kind.__name__}")
            elif isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"got {entry.name}={value}; expected a finite number")
        self._check_ranges()

    def _check_ranges(self) -> None:
        for name in _ZERO_OR_MORE:
            if getattr(self, name) < 0 or (name.startswith("beta") and getattr(self, name) >= 1):
                bound = "0 or more, less than 1" if name.startswith("beta") else "0 or more"
                raise UserError(f"got {name}={getattr(self, name)}; expected {bound}")
        positive = {entry.name for entry in fields(self)} - {*_ZERO_OR_MORE, *_CHOICES, "compile"}
        for name in sorted(positive):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"got {name}={value}; expected more than 0")
        if self.steps is None and self.minutes is None:
            raise UserError("got neither steps nor minutes; expected at least one of them: training has to end")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UserError(f"got {name}={getattr(self, name)!r}; expected one of: {', '.join(choices)}")
