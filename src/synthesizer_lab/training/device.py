"""Devices, the processes that train one model under torchrun, and errors of a full memory or disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import gather_object  # type: ignore[import-untyped]

from ..errors import UserError, one_line

LOST_PROCESS = "the connection to another process broke: it failed, see its message, or it was killed"


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
    several = PartialState(cpu=device.type == "cpu").num_processes > 1
    # `accelerate launch` sets the address for several processes.
    if not several and os.environ.get("ACCELERATE_USE_CPU") == "True" and "MASTER_ADDR" in os.environ:
        raise UserError(
            "accelerate launch has started one process, though it was told to start several: on a CPU it needs MPI for "
            "that; use torchrun --nproc-per-node N"
        )
    return device


def describe_device(device: torch.device) -> str:
    """The name of the device's model, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextmanager
def failing_together() -> Iterator[None]:
    """If one process fails inside, the others raise UserError at the end, and do not wait for it in the next step."""
    problem = None
    try:
        yield
    except Exception as error:
        problem = error
    if any_process(problem is not None):
        raise problem or UserError("another process failed; see its message")


def check_agreement(values: Mapping[str, object]) -> None:
    """Raise UserError if the processes have different `values`; every process has to call this."""
    for rank, other in enumerate(gather(dict(values))):
        if differing := [name for name, value in values.items() if other[name] != value]:
            raise UserError(
                f"process {PartialState().process_index} and process {rank} differ in {', '.join(differing)}; start "
                "all processes with the same command, on the same files"
            )


def any_process(condition: bool) -> bool:
    """Whether the condition holds in any process; every process has to call this."""
    return any(gather(condition))


def gather(value: Any) -> list[Any]:
    """The value of each process; every process has to call this."""
    if PartialState().num_processes == 1:
        return [value]
    try:
        return gather_object([value])
    except RuntimeError as error:
        raise UserError(LOST_PROCESS) from error


@contextmanager
def shortage_reported(less_memory: str, left: Callable[[], str]) -> Iterator[None]:
    """Report too little memory, unwritable files, a lost process and a failed compilation; other errors pass.

    `less_memory` says how to reduce the memory that is needed, `left` which results were kept.
    """
    try:
        yield
    # The reader of our output is gone.
    except BrokenPipeError:
        raise
    except (OSError, MemoryError, RuntimeError) as error:
        problem = one_line(error)
        # PyTorch has an exception class for the memory of devices, none for that of the CPU.
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in problem:
            problem = f"out of memory; {less_memory}"
        elif type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            problem = f"torch.compile failed: {problem}; leave out --torch-compile"
        # Gloo has no exception class.
        elif isinstance(error, torch.distributed.DistError) or "/gloo/" in problem:
            problem = LOST_PROCESS
        elif not isinstance(error, OSError):
            raise
        raise UserError(f"{problem}; {left()}") from error
