"""The command `synthesizer`."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["main"]

# The packages of the extra `train`.
_NEEDED = (
    *("accelerate", "babel", "datasets", "filelock", "matplotlib", "pandas", "rich"),
    *("rouge_score", "sacrebleu", "scipy", "sentencex", "typer", "yaml"),
)

# Without them, typer too may be missing.
_HELP = """Usage: synthesizer COMMAND [ARGS]...

  Train and use Transformers with synthesized attention weights: the commands train, evaluate, generate, compare,
  inspect, convert, export, settings and benchmark. With the extra installed, --help lists them and their options.

  {}

  Without it, `import synthetic_attention` has the layers and models."""

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
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        extra = "pip install 'synthetic-attention[train]', or '.[train]' in a clone"
        needs = f"{', '.join(missing)} missing; the command needs: {extra}"
        words = sys.argv[1:] if arguments is None else arguments
        if words and not {"-h", "--help"} & {*words}:
            sys.exit(f"Error: {needs}")
        print(_HELP.format(needs))
        return
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
