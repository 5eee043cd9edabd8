"""Libraries that only some tasks need, and that come as extras of the package."""

from __future__ import annotations

import importlib
from types import ModuleType

from ..errors import UserError

__all__ = ["require"]


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """The module, which the package's extra `extra` installs.

    Raises:
        UserError: it is not installed; the message says what for and how to.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{purpose} needs {error.name}, which is not installed; it comes with the extra {extra}: in the clone, "
            f"pip install -e '.[{extra}]'"
        ) from None
