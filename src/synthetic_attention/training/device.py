"""Where a model runs, in which numbers, and whether compiled."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from ..tasks import UserError

__all__ = ["DTYPES", "choose_device", "choose_dtype", "choose_training_device", "compile_blocks", "describe_device"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_device(name: str | None = None) -> torch.device:
    """The device of that name; by default the accelerator that is there, or else the CPU.

    Raises:
        UserError: no device is called that, or this machine or this PyTorch has none.
    """
    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name is None:
        return there or torch.device("cpu")
    known = "cpu" if there is None else f"cpu, {there.type}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"got device {name!r}; expected one of: {known}") from None
    if device.type != "cpu" and (there is None or device.type != there.type):
        raise UserError(f"got device {name!r}, which this machine does not have for PyTorch; expected one of: {known}")
    if device.type != "cpu" and (device.index or 0) >= torch.accelerator.device_count():
        raise UserError(f"got device {name!r}, but there are only {torch.accelerator.device_count()} of {device.type}")
    return device


def choose_training_device(name: str | None = None) -> torch.device:
    """As `choose_device`, for training, which takes the first device, or that of its process under torchrun.

    Raises:
        UserError: as `choose_device`, or another than the first device was asked for.
    """
    device = choose_device(name)
    if device.index:
        raise UserError(
            f"got device {name!r}; expected {device.type} for training, with {device.type.upper()}_VISIBLE_DEVICES="
            f"{device.index} in the environment to choose the device"
        )
    return device


def choose_dtype(name: str) -> torch.dtype:
    """The dtype of that name.

    Raises:
        UserError: it is none that models run in.
    """
    if name not in DTYPES:
        raise UserError(f"got dtype {name!r}; expected one of: {', '.join(DTYPES)}")
    return DTYPES[name]


def describe_device(device: torch.device) -> str:
    """What people call the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def compile_blocks(model: PreTrainedModel) -> None:
    """Compile the layers of a model in place, for all sizes of batches at once.

    Layers of a kind share what is compiled, so it takes as long for many as for few; and the loss stays the one that
    stores no logits.
    """
    for module in model.modules():
        if type(module).__name__ in (model._no_split_modules or ()):
            module.compile(dynamic=True)
