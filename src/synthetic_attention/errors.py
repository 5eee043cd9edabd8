"""Errors outside of the program: the input is at fault, or a file."""

from __future__ import annotations

import importlib
import os
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
def damage_reported(what: object) -> Iterator[None]:
    """Raise whatever fails inside as a UserError: `what` cannot be loaded, with the reason."""
    try:
        yield
    except BaseException as error:
        if not _is_failure(error):
            raise
        raise UserError(f"{what} cannot be loaded: {one_line(error)}") from error


@contextmanager
def unwritable_reported(what: object) -> Iterator[None]:
    """Raise whatever fails inside, except UserErrors, as an OSError: `what` cannot be written, with the reason."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, UserError) or not _is_failure(error):
            raise
        raise OSError(f"{what} cannot be written: {one_line(error)}") from error


def _is_failure(error: BaseException) -> bool:
    # Panics of the tokenizers library are no `Exception`.
    is_panic = type(error).__name__ == "PanicException"
    return is_panic or (isinstance(error, Exception) and not isinstance(error, MemoryError))


@contextmanager
def unread_ignored() -> Iterator[None]:
    """Ignore that standard error cannot be written inside, and from then on: its reader, or the terminal, is gone."""
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
