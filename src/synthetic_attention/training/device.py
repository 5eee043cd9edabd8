"""Devices, and the processes that train one model under torchrun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import gather_object  # type: ignore[import-untyped]

from ..errors import UserError


def choose_device(name: str | None = None) -> torch.device:
    """The device of that name; by default the accelerator if there is one, else the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name is None:
        return found or torch.device("cpu")
    count = 0 if found is None else torch.accelerator.device_count()
    known = ["cpu", *([found.type] if found else []), *(f"{found.type}:{i}" for i in range(count) if found)]
    if name not in known:
        raise UserError(f"got device {name!r}; expected one of: {', '.join(known)}")
    return torch.device(name)


def choose_training_device(name: str | None = None) -> torch.device:
    """As `choose_device`, and join the other processes of torchrun; each process uses the device of its local rank."""
    device = choose_device(name)
    if device.index:
        variable = f"{device.type.upper()}_VISIBLE_DEVICES={device.index}"
        raise UserError(f"got device {name!r}; expected {device.type} for training, and {variable} in the environment")
    PartialState(cpu=device.type == "cpu")
    return device


def describe_device(device: torch.device) -> str:
    """The name of the device's model, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextmanager
def entered_by_main_process(make: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Enter a context in the main process only; all processes wait before it and until it is entered.

    If the main process fails, the others raise UserError.
    """
    state, problem = PartialState(), None
    state.wait_for_everyone()
    with ExitStack() as entered:
        try:
            entered.enter_context(make() if state.is_main_process else nullcontext())
        except Exception as error:
            problem = error
        if any_process(problem is not None):
            raise problem or UserError("the main process failed; see its message")
        yield


def any_process(condition: bool) -> bool:
    """Whether the condition holds in any process; every process has to call this."""
    return any(gather_object([condition])) if PartialState().num_processes > 1 else condition
