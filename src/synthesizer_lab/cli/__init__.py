"""The command `synthesizer`."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

# transformers imports torchao where it is installed, which then names its libraries that do not fit this machine. Here
# and not in `main`, because processes of `compare --jobs` only import this module.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 for a user's error, 2 for wrong usage, 130 after Ctrl-C."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # Python has None for a stream that is closed; a file that is opened next would get its number.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115
    from .app import run

    code = run(arguments)
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        # Gloo's threads abort a process that Python ends normally while something still refers to the process group.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
