"""Checks of values and paths that users of the command set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synthetic_attention import validation

from .errors import UserError, user_errors


def resolve_path(path: Path) -> Path:
    """The absolute path without symbolic links; UserError if they lead back to themselves.

    Python 3.11 and 3.12 raise RuntimeError for these, 3.13 nothing.
    """
    try:
        return path.resolve()
    except RuntimeError:
        raise UserError(f"{path}: a symbolic link that leads back to itself; expected a file or folder") from None


def check_value(name: str, value: Any, kind: Any) -> None:
    """As the library's `check_value`, with a UserError."""
    with user_errors():
        validation.check_value(name, value, kind)
