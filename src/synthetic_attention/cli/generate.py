"""synthesizer generate RUN [TEXT … | -]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..tasks.errors import UserError

__all__ = ["generate"]


def generate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    text: Annotated[
        list[str] | None, typer.Argument(help="Lines to translate; - or none reads them from standard input.")
    ] = None,
    beams: Annotated[int, typer.Option(min=1, help="Beams of the search; 1 is greedy.")] = 4,
    length_penalty: Annotated[float, typer.Option(help="Exponent of the length that scores are divided by.")] = 0.6,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut lines over the maximum length.")] = False,
) -> None:
    """A line out for each line in, in order."""
    from ..training.evaluation import generate_lines
    from ..training.run_folder import RunFolder
    from .quiet import quiet_libraries, say

    quiet_libraries()
    # Before waiting for input.
    RunFolder(run).read_info()
    lines = _read(text)
    results, truncated = generate_lines(run, lines, beams=beams, length_penalty=length_penalty, truncate=truncate)
    if truncated:
        say(f"{truncated} lines truncated")
    # Text is UTF-8 in and out, whatever the locale.
    sys.stdout.buffer.write("".join(f"{line}\n" for line in results).encode())


def _read(text: list[str] | None) -> list[str]:
    from ..tasks.text import decode_lines

    if text in (None, [], ["-"]):
        return decode_lines(sys.stdin.buffer.read(), "standard input")
    try:
        return [line.encode().decode() for argument in text or [] for line in argument.split("\n")]
    except UnicodeEncodeError:
        raise UserError("an argument is not UTF-8; convert it, or give it on standard input") from None
