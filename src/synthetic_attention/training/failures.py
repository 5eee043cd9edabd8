"""What fails outside of the program, told in a line: damaged files, a full disk, too little memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from ..tasks import UserError

__all__ = ["damage_reported", "one_line", "shortage_reported"]

# What the readers of JSON, weights, optimizer states and configurations raise for a file that is damaged.
_DAMAGE = (
    AttributeError,
    EOFError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    SafetensorError,
    StrictDataclassError,
    pickle.UnpicklingError,
)


def one_line(error: BaseException) -> str:
    """The message of `error` on one line, or what it is where it says nothing or only a key."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__} {text}".rstrip() if isinstance(error, KeyError) or not text else text


@contextmanager
def damage_reported(what: str) -> Iterator[None]:
    """Report what is raised inside, while files are read, as damage of `what`.

    Raises:
        UserError: `what` cannot be loaded, and why.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # tokenizers raises Exception itself for a file that it cannot read.
        if not isinstance(error, _DAMAGE) and type(error) is not Exception:
            raise
        raise UserError(f"{what} cannot be loaded: {one_line(error)}") from error


@contextmanager
def shortage_reported(less_memory: str, left: Callable[[], str]) -> Iterator[None]:
    """Report too little memory, or files that the system does not let us write; other errors pass.

    Args:
        less_memory: how the user can make do with less.
        left: says what there is of the work, after the failure.

    Raises:
        UserError: what failed, and what can be done.
    """
    try:
        yield
    # The reader of our output has gone: nothing to report, and nobody to report it to.
    except BrokenPipeError:
        raise
    except (OSError, MemoryError, RuntimeError, SafetensorError) as error:
        text = one_line(error)
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
            problem = f"out of memory; {less_memory}"
        elif isinstance(error, OSError | SafetensorError):
            problem = text
        # torch.save has no class for a full disk, and no words either.
        elif "PytorchStreamWriter" in text or "inline_cont" in text:
            problem = f"a checkpoint could not be written, as on a full disk: {text}"
        elif type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            problem = f"torch.compile failed: {text}; leave out --compile"
        else:
            raise
        raise UserError(f"{problem}; {left()}") from error
