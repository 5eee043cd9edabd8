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
        problem = one_line(error)
        if is_out_of_memory(error):
            problem = f"out of memory; {less_memory}"
        elif type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            problem = f"torch.compile failed: {problem}; {without_compile}"
        # Gloo has no exception class.
        elif isinstance(error, torch.distributed.DistError) or "/gloo/" in problem:
            problem = LOST_PROCESS
        elif not isinstance(error, OSError):
            raise
        raise UserError(f"{problem}; {left()}") from error


def is_out_of_memory(error: Exception) -> bool:
    # PyTorch has an exception class for the memory of devices, none for that of the CPU.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
