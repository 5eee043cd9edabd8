"""The folder of this package in the user's cache, and folders in it that are made once and then only read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..errors import UserError

__all__ = ["made_once", "user_cache"]


def user_cache() -> Path:
    """`synthetic-attention` in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "synthetic-attention"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` in the user's cache; `make` fills it if it is not there.

    It is filled beside its place and moved there when it is complete. Of two processes that make it at once, the first
    to be ready leaves its own.

    Args:
        name: has to tell apart all contents that there can be: end it with a digest of what the content follows from.
        make: is given an empty folder.

    Raises:
        UserError: it cannot be written.
    """
    folder = user_cache() / name
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
        try:
            make(stage)
            try:
                stage.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{error}; set XDG_CACHE_HOME to a folder that can be written to, and has room") from error
    return folder
