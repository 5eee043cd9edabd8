"""Output of the commands: messages go to standard error, results to standard output."""

from __future__ import annotations

import os
import sys

from ..errors import unread_ignored


def say(message: str) -> None:
    """Print a line to standard error. Of the processes that torchrun starts, only the first one prints."""
    if _is_first_process():
        with unread_ignored():
            print(message, file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Write text to standard output as UTF-8, in any locale; under torchrun, only in the first process."""
    if _is_first_process():
        sys.stdout.buffer.write(text.encode(errors="replace"))
        sys.stdout.buffer.flush()


def set_up_libraries(threads: int | None = None) -> None:
    """Register the models, and silence the libraries' progress bars and warnings. Their errors are still shown.

    `threads` of PyTorch on a CPU are by default one per core, or OMP_NUM_THREADS.
    """
    # PyTorch reads this when it is imported: its profiler would print a line for every start and stop.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from transformers.utils import logging

    from synthetic_attention import models  # noqa: F401 (the import registers them)

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _is_first_process() -> bool:
    # Before the processes have joined, and in commands where they do not join.
    return os.environ.get("RANK", "0") == "0"
