"""synthesizer generate RUN [TEXT … | -], or --prompt TEXT."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UserError
from .long_inputs import ON_LONG_HELP, read_on_long
from .options import Beams, Device, LengthPenalty, MaxTokens, MinTokens, ModelDtype, NoRepeatNgram, Truncate

__all__ = ["generate"]

# Lines of standard input to translate at a time: enough to sort them into good batches.
_CHUNK = 1000


def generate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(help="What the run's task reads, a line each; - or none reads it from standard input."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Of a language model: write what follows this text, as it comes.")
    ] = None,
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    min_tokens: MinTokens = None,
    max_tokens: MaxTokens = None,
    no_repeat_ngram: NoRepeatNgram = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0, help="After a prompt: logits are divided by it; 0 takes the most probable tokens. [default: 1]"
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=0, help="After a prompt: draw from this many of the most probable. [default: all]")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="After a prompt: draw from the fewest that have this probability together. [default: 1]"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="After a prompt: the same seed, the same text. [default: drawn]")
    ] = None,
    on_long: Annotated[str | None, typer.Option(help=ON_LONG_HELP)] = None,
    truncate: Truncate = False,
    device: Device = None,
    dtype: ModelDtype = "float32",
) -> None:
    """A line out for each line in, in order; or, with --prompt, the text that follows it."""
    from ..training.evaluation import generate_chunks
    from .quiet import quiet_libraries, say

    quiet_libraries()
    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    if prompt is not None:
        searching = {
            "TEXT": text,
            "--beams": beams,
            "--length-penalty": length_penalty,
            "--min-tokens": min_tokens,
            "--no-repeat-ngram": no_repeat_ngram,
            "--on-long": on_long,
            "--truncate": truncate or None,
        }
        _refuse(searching, "with --prompt")
        _continue(run, prompt, {"device": device, "dtype": dtype, "max_tokens": max_tokens, **drawing})
        return
    _refuse({f"--{name.replace('_', '-')}": value for name, value in drawing.items()}, "without --prompt")
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
        _write("".join(f"{line}\n" for line in lines))
        total += over
    if total:
        say(long.describe(total, "lines"))


def _continue(run: Path, prompt: str, options: Mapping[str, Any]) -> None:
    """Write what follows the prompt; whatever ends it ends the line."""
    from ..training.evaluation import continue_prompt

    _check_text(prompt)
    written: list[str] = []

    def write(text: str) -> None:
        _write(text)
        written.append(text)

    try:
        continue_prompt(run, prompt, write, **options)
    except (KeyboardInterrupt, UserError):
        if written:
            _write("\n")
        raise
    _write("\n")


def _refuse(given: Mapping[str, object], where: str) -> None:
    """Raises BadParameter: some of `given`, options and their values, is given."""
    if names := [name for name, value in given.items() if value is not None]:
        raise typer.BadParameter(f"got {', '.join(names)} {where}; leave one out")


def _write(text: str) -> None:
    # Text is UTF-8 in and out, whatever the locale.
    sys.stdout.buffer.write(text.encode(errors="replace"))
    sys.stdout.buffer.flush()


def _read_arguments(text: list[str]) -> list[str]:
    from ..data.text import decode_lines

    for argument in text:
        _check_text(argument)
    return [line for argument in text for line in decode_lines(f"{argument}\n".encode(), "an argument")]


def _check_text(argument: str) -> None:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise UserError("an argument is not UTF-8; convert it, or give it on standard input") from None


def _read_standard_input() -> Iterator[list[str]]:
    from ..data.text import decode_lines

    first_line = 1
    while content := b"".join(islice(sys.stdin.buffer, _CHUNK)):
        lines = decode_lines(content, "standard input", first_line)
        yield lines
        first_line += len(lines)
