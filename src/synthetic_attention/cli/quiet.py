"""What commands say goes to standard error; standard output is for results."""

from __future__ import annotations

import os
import sys

__all__ = ["quiet_libraries", "say"]


def say(message: str) -> None:
    """A line on standard error; of several processes that torchrun started, only the first says it."""
    if os.environ.get("RANK", "0") == "0":
        print(message, file=sys.stderr, flush=True)


def quiet_libraries() -> None:
    """Keep transformers' progress bars and hints out of a command's output; its errors stay."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
