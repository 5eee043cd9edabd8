"""Fully sharded training (PyTorch's FSDP2): each process stores its part of parameters, gradients and optimizer states.

The unit is a block (`_no_split_modules`): its parameters are gathered for its forward and backward, and freed after
each. Everything else, embeddings and heads, forms one more unit. Checkpoints have whole weights and optimizer states,
as those of runs without sharding.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import parse_flag_from_env  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from ..errors import UserError
from .options import Sharding, TrainingOptions


def check_launch(training: TrainingOptions) -> None:
    """Raise UserError if `accelerate launch` asks for other training than `training`, or one process is to shard.

    PartialState has to exist.
    """
    if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        raise UserError("got DeepSpeed in the configuration of accelerate; expected FSDP, or --sharding fsdp")
    if training.sharding == "none" and parse_flag_from_env("ACCELERATE_USE_FSDP"):
        raise UserError("got sharding none, but FSDP in the configuration of accelerate; pass --sharding fsdp")
    if training.sharding == "fsdp" and PartialState().num_processes == 1:
        raise UserError(
            "got sharding fsdp with one process, which cannot shard; start several with `torchrun --nproc-per-node N` "
            "or `accelerate launch`, or pass --sharding none"
        )
    # The model is sharded here, the same way on all devices: Accelerate would not shard on a CPU, and transformers
    # would load a model into the first process only.
    os.environ.pop("ACCELERATE_USE_FSDP", None)
    # Trainer would follow the environment, and run.yaml would not say so.
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", "bf16" if training.bf16 else "no"):
        raise UserError(
            f"got mixed_precision {precision} in the configuration of accelerate; expected no, or bf16 with --bf16"
        )


def building_device(sharding: Sharding) -> torch.device:
    """Where to build and load a model: only the main process needs memory for the whole of one that gets sharded."""
    return torch.device("cpu" if sharding == "none" or PartialState().is_main_process else "meta")


def shard_model(model: PreTrainedModel, device: torch.device) -> None:
    """Shard a model over all processes in place, and move it to the device part by part.

    The others get their parts of the weights, and all buffers, from the main process; their models may be on the meta
    device. Every process has to call this, and from then on `forward` and `generate`, equally often.
    """
    weights = model.state_dict() if PartialState().is_main_process else {}
    mesh = init_device_mesh(device.type, (PartialState().num_processes,))
    options: dict[str, Any] = {"mesh": mesh, "shard_placement_fn": lambda parameter: _placement(parameter, mesh.size())}
    for module in model.modules():
        if type(module).__name__ in (model._no_split_modules or ()):
            fully_shard(module, **options)
    fully_shard(model, **options)
    if model.device.type == "meta":
        model.to_empty(device=device)
        # `to_empty` makes two parameters of a tied one.
        model.tie_weights()
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    if hasattr(model, "generate"):
        register_fsdp_forward_method(model, "generate")


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard_model` has sharded the model."""
    return isinstance(model, FSDPModule)


def gather_weights(model: nn.Module) -> dict[str, Tensor] | None:
    """The whole weights of a sharded model, in the main process on the CPU; None for a model that is not sharded.

    Every process has to call this; the others get an empty dictionary.
    """
    if not is_sharded(model):
        return None
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    every, unique = ({name for name, _ in model.named_parameters(remove_duplicate=flag)} for flag in (False, True))
    # Gathered tied weights are copies of each other: a file has them once.
    return {name: cast(Tensor, weight) for name, weight in weights.items() if name not in every - unique}


def gather_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """The whole state of an optimizer, in the main process on the CPU. Every process has to call this."""
    state, whole = optimizer.state_dict(), dict[int, dict[str, Any]]()
    for index, own in state["state"].items():
        gathered = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in own.items()}
        if PartialState().is_main_process:
            whole[index] = {
                name: value.cpu() if isinstance(value, Tensor) else value for name, value in gathered.items()
            }
    return {**state, "state": whole}


def load_optimizer(optimizer: Optimizer, path: Path) -> None:
    """Load a whole state into an optimizer; into a sharded one each process its part."""
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, own in state["state"].items():
        # Fused AdamW would read beyond the end of smaller ones.
        for name in own.keys() & {"exp_avg", "exp_avg_sq"}:
            if (found := [*own[name].shape]) != (expected := [*parameters[index].shape]):
                raise ValueError(f"{name} of parameter {index} has shape {found}; expected {expected}")
        own.update({name: sharded_as(parameters[index], value) for name, value in own.items()})
    optimizer.load_state_dict(state)


def sharded_as(target: Tensor, value: Tensor) -> Tensor:
    """A whole tensor, the same in all processes, sharded as `target` if it has its shape; else the tensor itself."""
    if not isinstance(target, DTensor) or value.shape != target.shape:
        return value
    # Each process has the whole tensor, so nothing needs to be sent.
    return distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)


def _placement(parameter: nn.Parameter, processes: int) -> Shard | None:
    """The dimension to shard if it is not the first: R (H, T, S) may have fewer heads than there are processes."""
    even = [dim for dim, size in enumerate(parameter.shape) if size % processes == 0]
    return Shard(even[0]) if even and len(parameter) < processes else None
