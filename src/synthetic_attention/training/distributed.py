"""Several processes that train one model, as torchrun starts them; with one process nothing here costs anything."""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import gather_object  # type: ignore[import-untyped]

__all__ = ["any_process", "is_main_process", "join", "main_process_alone"]


def join(device: torch.device) -> None:
    """Join the other processes, if there are any; with gloo on a CPU. May be called again."""
    PartialState(cpu=device.type == "cpu")


def is_main_process() -> bool:
    """Whether this is the first process, or the only one."""
    return bool(PartialState().is_main_process)


def main_process_alone(action: Callable[[], object]) -> None:
    """Let the first process do something, after all have come here and before any goes on."""
    state = PartialState()
    state.wait_for_everyone()
    if state.is_main_process:
        action()
    state.wait_for_everyone()


def any_process(condition: bool) -> bool:
    """Whether the condition holds in any process: the same answer in all of them, which all have to ask."""
    state = PartialState()
    return any(gather_object([condition])) if state.num_processes > 1 else condition
