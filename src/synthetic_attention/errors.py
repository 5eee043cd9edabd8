"""Errors outside of the program: the input is at fault, or a file."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


class UserError(ValueError):
    """Something the user can put right. The command line prints its message, one line, and exits without traceback."""


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module that an optional extra of this package installs.

    Raises:
        UserError: it is not installed; the message names the purpose and the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{purpose} needs {error.name}, which is not installed; pip install 'synthetic-attention[{extra}]' "
            f"(in a clone: pip install -e '.[{extra}]')"
        ) from None


def one_line(error: BaseException) -> str:
    """The message of an error on one line; its class too if the message is empty or only a key."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__} {text}".rstrip() if isinstance(error, KeyError) or not text else text


@contextmanager
def damage_reported(what: str) -> Iterator[None]:
    """Raise errors inside as a UserError: `what` cannot be loaded, with the reason."""
    try:
        yield
    except MemoryError:
        raise
    # Readers of JSON, weights, optimizer states and configurations have many errors; tokenizers raises Exception.
    except Exception as error:
        raise UserError(f"{what} cannot be loaded: {one_line(error)}") from error
