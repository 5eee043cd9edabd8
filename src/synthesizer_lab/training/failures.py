"""Shortages as one line: a full disk, too little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..errors import UserError, one_line

LOST_PROCESS = "the connection to another process broke: it failed, see its message, or it was killed"


@contextmanager
def shortage_reported(
    less_memory: str, left: Callable[[], str], without_compile: str = "leave out --torch-compile"
) -> Iterator[None]:
    """Report too little memory, unwritable files, a lost process and a failed compilation; other errors pass.

    `less_memory` says how to reduce the memory that is needed, `left` which results were kept, `without_compile` how
    to compile nothing.
    """
    try:
        yield
    # The reader of our output is gone.
    except BrokenPipeError:
        raise
    except (OSError, MemoryError, RuntimeError) as error:
        if (problem := describe_shortage(error, less_memory, without_compile)) is None:
            raise
        raise UserError(f"{problem}; {left()}") from error


def describe_shortage(error: Exception, less_memory: str = "", without_compile: str = "") -> str | None:
    """The message of an error that `shortage_reported` reports; None for others."""
    problem = one_line(error)
    if is_out_of_memory(error):
        return f"out of memory; {less_memory}"
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return f"torch.compile failed: {problem}; {without_compile}"
    # Gloo has no exception class.
    if isinstance(error, torch.distributed.DistError) or "/gloo/" in problem:
        return LOST_PROCESS
    return problem if isinstance(error, OSError) else None


def is_out_of_memory(error: Exception) -> bool:
    # PyTorch has an exception class for the memory of devices, none for that of the CPU.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
