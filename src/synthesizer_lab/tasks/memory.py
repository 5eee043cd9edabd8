"""The memory that training needs at least, estimated before it is allocated."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch

from synthetic_attention.models import SynthesizerConfig
from synthetic_attention.models.modeling import SynthesizerStack

from ..errors import UserError
from .base import Task, build_model

_CGROUP = Path("/sys/fs/cgroup/memory.max")


def total_memory(device: torch.device) -> int:
    """Bytes of the GPU, or of the machine, or fewer if its container may use fewer."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(_CGROUP.read_text()))
    except (OSError, ValueError):
        return total


def count_parameters(task: Task[Any, Any], config: SynthesizerConfig) -> int:
    """The parameters of a task's model, counted without building more than one layer of each kind.

    Raises:
        UserError: a model of these sizes cannot be built.
    """
    names = {side: Counter(config.synthesizers(side)) for side in ("encoder", "decoder")}
    small = copy.deepcopy(config)
    small.num_layers, small.num_decoder_layers = len(names["encoder"]), len(names["decoder"])
    if isinstance(config.synthesizer, dict):
        small.synthesizer = {side: [*counts] for side, counts in names.items()}
    elif isinstance(config.synthesizer, list):
        small.synthesizer = [*names["encoder"]]
    try:
        with torch.device("meta"):
            model = build_model(task, small)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"the model cannot be built: {' '.join(str(error).split())}") from error
    total = model.num_parameters()
    for stack in model.modules():
        if isinstance(stack, SynthesizerStack):
            for name, block in zip(small.synthesizers(stack.side), stack.layers, strict=True):
                total += (names[stack.side][name] - 1) * sum(parameter.numel() for parameter in block.parameters())
    return total


def check_training(
    task: Task[Any, Any], config: Any, training: Any, device: torch.device, processes: int = 1, tokens: float = 0
) -> int:
    """The bytes that a process needs at least: weights, gradients, optimizer states, and hidden states of a batch.

    Args:
        config: the `SynthesizerConfig`.
        training: the `SynthesizerTrainingArguments`.
        processes: those that share the model, if it is sharded.
        tokens: those of the training data, which a batch cannot exceed.

    Raises:
        UserError: the device has less memory.
    """
    # AdamW has two states for each parameter; Adafactor has few.
    states = 2 if training.optim.startswith("adamw") else 0
    shared = count_parameters(task, config) * 4 * (2 + states) // (processes if training.sharding == "fsdp" else 1)
    # At least the inputs of linear layers are kept, of checkpointed layers only their own. A token of a pair is in one
    # of the two stacks.
    width = config.d_model if training.gradient_checkpointing else 4 * config.d_model + config.d_ff
    layers = min(config.num_layers, config.num_decoder_layers)
    kept = min(tokens, training.batch_tokens) * layers * width * (2 if training.bf16 else 4)
    way_out = "Lower num_layers, d_model, d_ff, vocab_size, max_position_embeddings or batch_tokens"
    needed = shared + int(kept)
    if needed > (total := total_memory(device)):
        raise UserError(
            f"training a model of this size needs at least {needed / 1e9:,.1f} GB of memory; got {total / 1e9:,.1f} GB "
            f"({device.type}). {way_out}"
        )
    return needed
