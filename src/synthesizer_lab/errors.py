"""Errors outside of the program: the input is at fault, or a file."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# Raised by mistakes of the program, not by files.
_BUGS = (AssertionError, AttributeError, NameError, TypeError)


class UserError(ValueError):
    """Something the user can put right. The command line prints its message, one line, and exits without traceback."""


class NoSplitError(UserError):
    """A data set has no split of that name."""


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
def user_errors() -> Iterator[None]:
    """Raise what the library refuses inside, ValueError and ImportError, as a UserError."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        yield
    except UserError:
        raise
    # The strict dataclass of huggingface_hub reports a wrong type with exceptions of its own.
    except (ValueError, ImportError, StrictDataclassError) as error:
        raise UserError(one_line(error)) from error


def check_value(name: str, value: Any, kind: Any) -> None:
    """As the library's `check_value`, with a UserError."""
    from synthetic_attention import validation

    with user_errors():
        validation.check_value(name, value, kind)


@contextmanager
def damage_reported(what: object, action: str = "loaded") -> Iterator[None]:
    """Raise any error from inside as a UserError that names `what`.

    With "written" it is raised as an OSError; UserErrors, and errors of the program itself, pass unchanged.
    """
    try:
        yield
    except BaseException as error:
        kind, passed = (OSError, (MemoryError, UserError, *_BUGS)) if action == "written" else (UserError, MemoryError)
        # Panics of the tokenizers library are no `Exception`.
        if isinstance(error, passed) or not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        raise kind(f"{what} cannot be {action}: {one_line(error)}") from error


@contextmanager
def unread_ignored() -> Iterator[None]:
    """Ignore that standard error cannot be written inside, and from then on: its reader, or the terminal, is gone."""
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
