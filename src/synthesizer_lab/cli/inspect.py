"""synthesizer inspect RUN [TEXT …]."""

from __future__ import annotations

from pathlib import Path

from .console import say, set_up_libraries, write
from .options import Device, argument, option


def inspect(
    *,
    run: str = argument("RUN", "Folder of a trained run, or the name of one on the hub."),
    text: list[str] | None = argument("TEXT", "Texts to inspect. [default: examples of the data]", None),
    data: Path | None = option("The data. [default: the data of the run]", metavar="PATH"),
    split: str = option("Split of the data.", "valid"),
    examples: int = option("Number of examples to draw, if no text is given.", 2, least=1),
    sample: int = option("Number of examples for histograms and statistics.", 200, least=1),
    output: Path | None = option("Folder to write to. [default: inspect/ in RUN, or in ./OWNER--NAME]"),
    place: Device,
) -> None:
    """Draw attention weights, logit matrices, biases and gates.

    Writes pictures, a page that shows them, and the numbers as JSON.

    Example: synthesizer inspect runs/first "two dogs run on the grass ."
    """
    from ..inspect.inspection import inspect_run

    set_up_libraries(place.threads)
    page = inspect_run(
        run,
        text or (),
        data=data,
        split=split,
        examples=examples,
        sample=sample,
        output=output,
        device=place.device,
        report=say,
    )
    write(f"{page}\n")
