"""synthesizer generate RUN [TEXT … | -], or --prompt TEXT."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from ..errors import UserError
from . import options as opt
from .console import say, set_up_libraries, write

__all__ = ["generate"]

# Lines of standard input that are read at a time: enough to sort them by length into batches.
_LINES = 1000
_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def generate(
    run: opt.Run,
    text: Annotated[
        list[str] | None,
        Argument(metavar="TEXT", help="Inputs, one line each. [default: -, standard input]"),
    ] = None,
    prompt: Annotated[str | None, Option(help="Continue this text (language models only).")] = None,
    num_beams: opt.NumBeams = None,
    length_penalty: opt.LengthPenalty = None,
    min_new_tokens: opt.MinNewTokens = None,
    max_new_tokens: opt.MaxNewTokens = None,
    no_repeat_ngram_size: opt.NoRepeatNgramSize = None,
    temperature: Annotated[
        float | None, opt.number("With --prompt: divide logits by this; 0 is greedy. [default: 1]", 0)
    ] = None,
    top_k: Annotated[
        int | None, opt.integer("With --prompt: sample from the k most probable tokens. [default: all]", 0)
    ] = None,
    top_p: Annotated[
        float | None, opt.number("With --prompt: sample from the fewest tokens with this probability. [default: 1]")
    ] = None,
    seed: Annotated[int | None, opt.integer("With --prompt: seed of sampling. [default: random]", 0)] = None,
    on_long: opt.OnLongInput = None,
    truncate: opt.Truncate = False,
    device: opt.Device = None,
    bf16: opt.Bf16Weights = False,
) -> None:
    """Generate text from a trained run, one line for each input line."""
    on_long = opt.choose_on_long(on_long, truncate)
    for_lines = opt.given(locals(), *(name for name in opt.GENERATION if name != "max_new_tokens"), "on_long")
    for_prompt = opt.given(locals(), *_SAMPLING)
    common = {"device": device, "bf16": bf16, **opt.given(locals(), "max_new_tokens")}
    excluded = for_prompt if prompt is None else {**opt.given({"TEXT": text}, "TEXT"), **for_lines}
    if excluded:
        names = ", ".join(name if name.isupper() else f"--{name.replace('_', '-')}" for name in excluded)
        if prompt is None:
            them = "it" if len(excluded) == 1 else "them"
            raise BadParameter(f"got {names} without --prompt; leave {them} out, or give --prompt")
        raise BadParameter(f"got {names} with --prompt; leave one out")
    from ..training.evaluation import generate_chunks

    set_up_libraries()
    if prompt is not None:
        _continue(run, prompt, **common, **for_prompt)
        return
    chunks = _read_standard_input() if text in (None, [], ["-"]) else _read_arguments(text or [])
    count = 0
    for lines, too_long in generate_chunks(run, chunks, **common, **for_lines):
        write("".join(f"{line}\n" for line in lines))
        count += too_long
    if count:
        say(f"{count} lines {'split into sentences' if on_long == 'split' else 'truncated'}")


def _continue(run: Path, prompt: str, **options: Any) -> None:
    """Write the continuation of the prompt as it is generated. The output ends with a newline, also after an error."""
    from ..training.evaluation import continue_prompt

    _encode(prompt)
    written = False

    def write_part(text: str) -> None:
        nonlocal written
        write(text)
        written = True

    try:
        continue_prompt(run, prompt, write_part, **options)
        written = True
    finally:
        if written:
            write("\n")


def _encode(argument: str) -> bytes:
    try:
        return f"{argument}\n".encode()
    except UnicodeEncodeError:
        raise UserError("an argument is not UTF-8; convert it, or give it on standard input") from None


def _read_arguments(text: list[str]) -> Iterator[list[str]]:
    from ..data.lines import decode_lines

    yield [line for argument in text for line in decode_lines(_encode(argument), "an argument")]


def _read_standard_input() -> Iterator[list[str]]:
    from ..data.lines import decode_lines

    first_line = 1
    while content := b"".join(islice(sys.stdin.buffer, _LINES)):
        lines = decode_lines(content, "standard input", first_line)
        yield lines
        first_line += len(lines)
