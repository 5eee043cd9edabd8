"""The one exception that means: the input is at fault, not the program."""

from __future__ import annotations

__all__ = ["UserError"]


class UserError(ValueError):
    """Something the user can put right. The command line prints its message, one line, and exits without traceback."""
