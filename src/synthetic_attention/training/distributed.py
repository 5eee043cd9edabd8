"""Several processes that train one model, as torchrun starts them; with one process nothing here costs anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import gather_object  # type: ignore[import-untyped]

from ..tasks import UserError

__all__ = ["any_process", "by_main_process", "join", "main_process_alone"]


def join(device: torch.device) -> None:
    """Join the other processes, if there are any; with gloo on a CPU. May be called again."""
    PartialState(cpu=device.type == "cpu")


@contextmanager
def by_main_process(make: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Let the first process enter a context for all, after all have come here and before any goes on.

    Raises:
        Exception: what entering it raised; in the other processes a UserError, so that none waits for ever.
    """
    state = PartialState()
    state.wait_for_everyone()
    with ExitStack() as entered:
        problem: Exception | None = None
        if state.is_main_process:
            try:
                entered.enter_context(make())
            except Exception as error:
                problem = error
        if any_process(problem is not None):
            raise problem or UserError("the first process could not begin; it says why")
        yield


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
