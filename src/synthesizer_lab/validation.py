"""Checks of values that users of the command set."""

from __future__ import annotations

from typing import Any

from synthetic_attention import validation

from .errors import user_errors


def check_value(name: str, value: Any, kind: Any) -> None:
    """As the library's `check_value`, with a UserError."""
    with user_errors():
        validation.check_value(name, value, kind)
