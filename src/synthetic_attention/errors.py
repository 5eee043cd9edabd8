"""The error that means: the input is at fault, not the program."""

from __future__ import annotations

import importlib
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
