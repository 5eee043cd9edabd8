"""Our settings as the arguments of Hugging Face's Trainer."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import Adafactor
from transformers import TrainingArguments as HuggingFaceArguments

from ..synthesizers import SynthesizingFunction
from .checkpoint import Checkpoint
from .run_folder import RunFolder
from .settings import Settings, TrainingArguments

__all__ = ["choose_optimizer", "constant_first", "free_logits", "trainer_arguments"]

# Where only the minutes end training. Trainer wants a number.
_ENDLESS = 10**9


def _max_steps(training: TrainingArguments, start: Checkpoint | None) -> int:
    # Of a complete run only the validation can be missing.
    if start is not None and start.is_complete(training):
        return start.step
    return training.steps or _ENDLESS


def trainer_arguments(
    settings: Settings, run: RunFolder, start: Checkpoint | None, device: torch.device
) -> HuggingFaceArguments:
    """The arguments of a run, from `start` if that is given."""
    training = settings.training
    arguments = HuggingFaceArguments(
        output_dir=str(run.checkpoints),
        seed=settings.seed,
        max_steps=_max_steps(training, start),
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        learning_rate=training.learning_rate,
        lr_scheduler_type="constant_with_warmup" if training.schedule == "constant" else "inverse_sqrt",
        warmup_steps=training.warmup_steps,
        optim="adamw_torch_fused",
        adam_beta1=training.beta1,
        adam_beta2=training.beta2,
        adam_epsilon=training.epsilon,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        bf16=training.dtype == "bfloat16",
        eval_strategy="steps",
        eval_steps=training.eval_interval,
        eval_on_start=start is not None and start.lacks_validation(training),
        save_strategy="steps",
        save_steps=training.eval_interval,
        logging_steps=training.log_interval,
        # It would wait for the device at each step, and hide what `log` refuses.
        logging_nan_inf_filter=False,
        dataloader_pin_memory=device.type == "cuda",
        remove_unused_columns=False,
        # Without it, torchrun's processes would each train alone on a CPU.
        use_cpu=device.type == "cpu",
        # Of several processes each takes every n-th batch, however many examples it has.
        accelerator_config={"even_batches": False},
        ddp_find_unused_parameters=False,
        label_names=["labels"],
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )
    # Several GPUs are for several processes; Trainer would split each batch among them in this one.
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1
    return arguments


def choose_optimizer(training: TrainingArguments) -> tuple[type[Optimizer], dict[str, Any]] | None:
    """The class of the optimizer and its options, where it is none that `trainer_arguments` can name with all of them.

    Adafactor is set as T5's: no first moment, updates clipped at a root mean square of 1 and scaled by that of the
    weights, which counts as at least 1e-3 (of some as more, see `free_logits`). The `optim` of transformers turns that
    scaling off.
    """
    if training.optimizer == "adamw":
        return None
    options = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    return Adafactor, {**options, "scale_parameter": True, "relative_step": False, "warmup_init": False}


def free_logits(optimizer: Optimizer, model: nn.Module, scale: float) -> None:
    """Let Adafactor move parameters that are logits (R, gates, biases of keys) as if they had the size of weights.

    They start near zero so that attention starts almost uniform. Scaled by that, updates would leave them there for
    thousands of steps: R's first one, at T5's rate of 0.01, is 3e-5, and that of a gate 1e-5.

    Args:
        optimizer: a new one, with groups as Trainer makes them.
        scale: what they count as at least; 0.1 is about what the weights of a layer a hundred wide start with.
    """
    logits = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, SynthesizingFunction)
        for parameter in module.logit_parameters()
    }
    for group in [*optimizer.param_groups]:
        apart = [parameter for parameter in group["params"] if id(parameter) in logits]
        if apart and isinstance(optimizer, Adafactor):
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in logits]
            smallest, _ = group["eps"]
            optimizer.add_param_group({**group, "params": apart, "eps": (smallest, scale)})


def constant_first(optimizer: Optimizer, training: TrainingArguments) -> LambdaLR:
    """T5's schedule: the highest rate for `constant_steps`, then times √(constant_steps / step); warm-up before it."""
    return LambdaLR(optimizer, partial(_constant_first, training.warmup_steps, training.constant_steps))


def _constant_first(warmup_steps: int, constant_steps: int, step: int) -> float:
    if step < warmup_steps:
        return step / warmup_steps
    scale = max(warmup_steps, constant_steps)
    return math.sqrt(scale / max(step, scale))
