"""synthesizer generate RUN [TEXT … | -]."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from ..tasks.errors import UserError
from .devices import DEVICE_HELP, DTYPE_HELP
from .long_inputs import ON_LONG_HELP, read_on_long

__all__ = ["generate"]

# Lines of standard input to translate at a time: enough to sort them into good batches.
_CHUNK = 1000


def generate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    text: Annotated[
        list[str] | None, typer.Argument(help="Lines to translate; - or none reads them from standard input.")
    ] = None,
    beams: Annotated[int | None, typer.Option(min=1, help="Beams of the search; 1 is greedy. [default: 4]")] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Hypotheses of n tokens are ranked by log-probability / n^penalty. [default: 0.6]"),
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option(min=0, help="Tokens of a line before it may end. [default: 0]")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="The most tokens of a line. [default: the task's]")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(min=0, help="No n-gram of this length comes twice in a line. [default: 0, any may]")
    ] = None,
    on_long: Annotated[str | None, typer.Option(help=ON_LONG_HELP)] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Short for --on-long truncate.")] = False,
    device: Annotated[str | None, typer.Option(help=DEVICE_HELP)] = None,
    dtype: Annotated[str, typer.Option(help=DTYPE_HELP)] = "float32",
) -> None:
    """A line out for each line in, in order."""
    from ..training.evaluation import generate_chunks
    from .quiet import quiet_libraries, say

    quiet_libraries()
    long = read_on_long(on_long, truncate)
    chunks = _read_standard_input() if text in (None, [], ["-"]) else iter([_read_arguments(text or [])])
    total = 0
    results = generate_chunks(
        run,
        chunks,
        truncate=long.truncate,
        device=device,
        dtype=dtype,
        beams=beams,
        length_penalty=length_penalty,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        no_repeat_ngram=no_repeat_ngram,
        split_long=long.split_long,
    )
    for lines, over in results:
        # Text is UTF-8 in and out, whatever the locale.
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode())
        sys.stdout.buffer.flush()
        total += over
    if total:
        say(long.describe(total, "lines"))


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
