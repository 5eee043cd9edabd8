"""Output of the commands: messages go to standard error, results to standard output."""

from __future__ import annotations

import os
import sys


def say(message: str) -> None:
    """Print a line to standard error. Of the processes that torchrun starts, only the first one prints."""
    if os.environ.get("RANK", "0") == "0":
        print(message, file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Write text to standard output as UTF-8, in any locale."""
    sys.stdout.buffer.write(text.encode(errors="replace"))
    sys.stdout.buffer.flush()


def set_up_libraries() -> None:
    """Register the models, and silence the libraries' progress bars and warnings. Their errors are still shown."""
    # PyTorch reads this when it is imported: its profiler would print a line for every start and stop.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from transformers.utils import logging

    from .. import models  # noqa: F401 (the import registers them)

    logging.set_verbosity_error()
    logging.disable_progress_bar()
