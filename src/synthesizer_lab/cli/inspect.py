"""synthesizer inspect RUN [TEXT …]."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as opt
from .console import say, set_up_libraries, write


def inspect(
    run: opt.Run,
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts to inspect. [default: examples of the data]"),
    ] = None,
    data: opt.RunData = None,
    split: Annotated[str, typer.Option(help="Split of the data.")] = "valid",
    examples: Annotated[int, opt.number("Number of examples to draw, if no text is given.", 1)] = 2,
    sample: Annotated[int, opt.number("Number of examples for histograms and statistics.", 1)] = 200,
    output: Annotated[Path | None, typer.Option(help="Folder to write to. [default: RUN/inspect]")] = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
) -> None:
    """Draw attention weights, logit matrices, biases and gates.

    Writes pictures, a page that shows them, and the numbers as JSON.
    """
    from ..inspect.inspection import Selection, inspect_run

    set_up_libraries(threads)
    selection = Selection(text or (), data, split, examples, sample)
    write(f"{inspect_run(run, selection, output=output, device=device, report=say)}\n")
