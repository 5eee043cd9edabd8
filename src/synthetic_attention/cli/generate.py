"""synthesizer generate RUN [TEXT … | -]."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from ..tasks.errors import UserError

__all__ = ["generate"]

# Lines of standard input to translate at a time: enough to sort them into good batches.
_CHUNK = 1000


def generate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    text: Annotated[
        list[str] | None, typer.Argument(help="Lines to translate; - or none reads them from standard input.")
    ] = None,
    beams: Annotated[int, typer.Option(min=1, help="Beams of the search; 1 is greedy.")] = 4,
    length_penalty: Annotated[
        float, typer.Option(help="Hypotheses of n tokens are ranked by log-probability / n^penalty.")
    ] = 0.6,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut lines over the maximum length.")] = False,
) -> None:
    """A line out for each line in, in order."""
    from ..training.evaluation import generate_chunks
    from .quiet import quiet_libraries, say

    quiet_libraries()
    chunks = _read_standard_input() if text in (None, [], ["-"]) else iter([_read_arguments(text or [])])
    total = 0
    for lines, truncated in generate_chunks(run, chunks, beams=beams, length_penalty=length_penalty, truncate=truncate):
        # Text is UTF-8 in and out, whatever the locale.
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode())
        sys.stdout.buffer.flush()
        total += truncated
    if total:
        say(f"{total} lines truncated")


def _read_arguments(text: list[str]) -> list[str]:
    from ..tasks.text import decode_lines

    try:
        return [line for argument in text for line in decode_lines(f"{argument}\n".encode(), "an argument")]
    except UnicodeEncodeError:
        raise UserError("an argument is not UTF-8; convert it, or give it on standard input") from None


def _read_standard_input() -> Iterator[list[str]]:
    from ..tasks.text import decode_lines

    first_line = 1
    while content := b"".join(islice(sys.stdin.buffer, _CHUNK)):
        lines = decode_lines(content, "standard input", first_line)
        yield lines
        first_line += len(lines)
