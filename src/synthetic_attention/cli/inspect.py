"""synthesizer inspect RUN [TEXT …]."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Device

__all__ = ["inspect"]


def inspect(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    text: Annotated[
        list[str] | None, typer.Argument(help="Texts to draw heat maps for. [default: examples of the data]")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The data. [default: that of the run]")] = None,
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "valid",
    examples: Annotated[int, typer.Option(min=1, help="How many, where no text is given.")] = 2,
    sample: Annotated[int, typer.Option(min=1, help="Examples for histograms and numbers.")] = 200,
    output: Annotated[Path | None, typer.Option(help="The folder to write. [default: RUN/inspect]")] = None,
    device: Device = None,
) -> None:
    """Draw attention weights, R before and after training, and gates: pictures, a page of them, numbers as JSON."""
    from ..inspect.inspection import inspect_run
    from .quiet import quiet_libraries, say

    quiet_libraries()
    page = inspect_run(
        run,
        text or (),
        data=data,
        split=split,
        count=examples,
        sample=sample,
        output=output,
        device=device,
        report=say,
    )
    typer.echo(page)
