"""Fully sharded training (PyTorch's FSDP2): each process stores its part of parameters, gradients and optimizer states.

The unit is a block (`_no_split_modules`): its parameters are gathered for its forward and backward, and freed after
each. Everything else, embeddings and heads, forms one more unit.

A checkpoint of a sharded run has the whole `model.safetensors`, and the optimizer's tensors as each process has them:

    optimizer/shard-0000N-….safetensors   tensors, named PARAMETER.STATE, as `torch.distributed.checkpoint` shards them
    optimizer/state.json                  numbers, the groups of parameters, and the names of these files
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.distributed import is_initialized
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, zeros
from torch.optim import Optimizer
from transformers import Adafactor, PreTrainedModel

from ..errors import UserError
from .arguments import Sharding, SynthesizerTrainingArguments

OPTIMIZER = "optimizer"
_STATE = "state.json"
# Variables of `accelerate launch` for what this package does not do.
_OTHER_PLUGINS = {"ACCELERATE_USE_DEEPSPEED": "DeepSpeed", "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM"}
_UNSUPPORTED = {
    "FSDP_OFFLOAD_PARAMS": "fsdp_offload_params: false",
    "FSDP_ACTIVATION_CHECKPOINTING": "fsdp_activation_checkpointing: false, and --set gradient_checkpointing=true",
}


def launched_sharding() -> Sharding | None:
    """The sharding that `accelerate launch` asks for: "fsdp", or None if it says nothing.

    Raises:
        UserError: its configuration has FSDP1, or an option that would have no effect.
    """
    for variable, plugin in _OTHER_PLUGINS.items():
        if _is_set(variable):
            raise UserError(f"got {plugin} in the configuration of accelerate; expected FSDP2, or --sharding fsdp")
    if not _is_set("ACCELERATE_USE_FSDP"):
        return None
    if (version := os.environ.get("FSDP_VERSION", "1")) != "2":
        raise UserError(f"got FSDP{version} in the configuration of accelerate; expected fsdp_version: 2")
    for variable, remedy in _UNSUPPORTED.items():
        if _is_set(variable):
            raise UserError(f"got {variable.lower()} in the configuration of accelerate; expected {remedy}")
    return "fsdp"


def check_sharding(sharding: Sharding) -> None:
    """Raise UserError if this process cannot do as `sharding`, "fsdp" or "none", says; PartialState has to exist."""
    launched = launched_sharding()
    if launched and sharding != launched:
        raise UserError(f"got sharding {sharding}, but FSDP in the configuration of accelerate; pass --sharding fsdp")
    if sharding == "fsdp" and PartialState().num_processes == 1:
        raise UserError(
            "got sharding fsdp with one process, which cannot shard; start several with `torchrun --nproc-per-node N` "
            "or `accelerate launch`, or pass --sharding none"
        )
    # The model is sharded here, the same way on all devices: Accelerate would not shard on a CPU, and transformers
    # would load a model into the first process only.
    os.environ.pop("ACCELERATE_USE_FSDP", None)


def check_launch(training: SynthesizerTrainingArguments) -> None:
    """Raise UserError if `accelerate launch` asks for other training than `training`; PartialState has to exist."""
    check_sharding(training.sharding)
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
    reshard = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() != "false"
    for module in model.modules():
        if type(module).__name__ in (model._no_split_modules or ()):
            fully_shard(module, reshard_after_forward=reshard, **options)
    fully_shard(model, **options)
    if model.device.type == "meta":
        model.to_empty(device=device)
        # `to_empty` makes two parameters of a tied one.
        model.tie_weights()
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for method in ("generate", "token_losses"):
        if hasattr(model, method):
            register_fsdp_forward_method(model, method)
    if not all(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise UserError("got sharding fsdp, but PyTorch did not shard the model; pass --sharding none")


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


def copy_whole(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor, the same in all processes, into one that may be sharded."""
    target.copy_(_like(value, target))


def initialize_adafactor(optimizer: Adafactor) -> None:
    """Make the states of sharded parameters, which Adafactor itself would make as plain tensors."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state, shape = optimizer.state[parameter], parameter.shape
            state.update(step=0, RMS=0)
            if len(shape) < 2:
                state["exp_avg_sq"] = torch.zeros_like(parameter)
                continue
            for name, size in (("row", shape[:-1]), ("col", (*shape[:-2], shape[-1]))):
                state[f"exp_avg_sq_{name}"] = zeros(size, dtype=parameter.dtype, device_mesh=parameter.device_mesh)


def save_optimizer(optimizer: Optimizer, folder: Path) -> None:
    """Save a sharded optimizer: each process its part. Every process has to call this."""
    state = optimizer.state_dict()
    entries = {f"{index}.{name}": value for index, own in state["state"].items() for name, value in own.items()}
    tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    if tensors:
        state_dict_saver.save(tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    if PartialState().is_main_process:
        folder.mkdir(exist_ok=True)
        content = {
            "files": sorted(path.name for path in folder.glob("*.safetensors")),
            "numbers": {name: value for name, value in entries.items() if name not in tensors},
            "param_groups": state["param_groups"],
        }
        (folder / _STATE).write_text(json.dumps(content), encoding="utf-8")


def shard_names(folder: Path) -> list[str]:
    """The names of the files of a saved optimizer."""
    return [*json.loads((folder / _STATE).read_text(encoding="utf-8"))["files"], _STATE]


def load_optimizer(optimizer: Optimizer, checkpoint: Path) -> None:
    """Load the optimizer of a checkpoint of any number of processes, sharded or not; it may be sharded itself."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    folder = checkpoint / OPTIMIZER
    if not folder.is_dir():
        whole = torch.load(checkpoint / f"{OPTIMIZER}.pt", map_location="cpu", weights_only=True, mmap=True)
        for index, own in whole["state"].items():
            parameter = parameters[index]
            for name, value in own.items():
                own[name] = _like(value, optimizer.state[parameter].get(name, parameter))
        optimizer.load_state_dict(whole)
        return
    content = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    tensors: dict[str, Tensor] = {}
    if content["files"]:
        reader = HuggingFaceStorageReader(str(folder))
        found: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        for name, entry in found.items():
            index, _, key = name.partition(".")
            parameter = parameters[int(index)]
            like = optimizer.state[parameter].get(key, parameter)
            is_like = isinstance(like, Tensor) and entry.size == like.shape
            empty = torch.empty_like(like) if is_like else torch.empty(entry.size)
            tensors[name] = empty.to(entry.properties.dtype)
        with warnings.catch_warnings():
            # One process loads alone, as intended.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            state_dict_loader.load(tensors, storage_reader=reader, no_dist=not is_initialized())
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**content["numbers"], **tensors}.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    # JSON has no tuples.
    groups = [
        {key: tuple(value) if isinstance(value, list) and key != "params" else value for key, value in group.items()}
        for group in content["param_groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _placement(parameter: nn.Parameter, processes: int) -> Shard | None:
    """The dimension to shard if it is not the first: R (H, T, S) may have fewer heads than there are processes."""
    even = [dim for dim, size in enumerate(parameter.shape) if size % processes == 0]
    return Shard(even[0]) if even and len(parameter) < processes else None


def _like(value: Any, target: Tensor) -> Any:
    """A whole tensor sharded as `target`, if it has its shape; else the value itself."""
    if not (isinstance(target, DTensor) and isinstance(value, Tensor) and value.shape == target.shape):
        return value
    # Each process has the whole tensor, so nothing needs to be sent.
    value = value.to(target.device)
    return distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() in ("1", "true", "yes")
