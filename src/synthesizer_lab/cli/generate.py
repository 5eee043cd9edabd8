"""synthesizer generate RUN [TEXT … | -], or --prompt TEXT."""

from __future__ import annotations

import io
import os
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from . import options as opt
from .console import say, set_up_libraries, write

# Lines of standard input that are read at a time: enough to sort them by length into batches.
_LINES = 1000


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
        int | None, opt.number("With --prompt: sample from the k most probable tokens. [default: all]", 0)
    ] = None,
    top_p: Annotated[
        float | None, opt.number("With --prompt: sample from the fewest tokens with this probability. [default: 1]")
    ] = None,
    seed: Annotated[int | None, opt.number("With --prompt: seed of sampling. [default: random]", 0, 2**63 - 1)] = None,
    on_long: opt.OnLongInput = None,
    truncate: opt.Truncate = False,
    device: opt.Device = None,
    threads: opt.Threads = None,
    bf16: opt.Bf16Weights = False,
    int8: opt.Int8 = False,
    sharding: opt.Sharding = None,
) -> None:
    """Generate text from a trained run, one line for each input line."""
    on_long = opt.choose_on_long(on_long, truncate)
    for_lines = opt.given(locals(), *(name for name in opt.GENERATION if name != "max_new_tokens"), "on_long")
    for_prompt = opt.given(locals(), "temperature", "top_k", "top_p", "seed")
    common = {"device": device, "bf16": bf16, "int8": int8, **opt.given(locals(), "max_new_tokens")}
    if excluded := for_prompt if prompt is None else for_lines:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in excluded)
        raise BadParameter(f"got {names} {'without' if prompt is None else 'with'} --prompt; leave one out")
    if prompt is not None and text:
        raise BadParameter("got TEXT with --prompt; leave one out")
    from ..data.files import decode_lines
    from ..training.evaluation import generate_chunks
    from ..training.sharding import launched_sharding

    set_up_libraries(threads)
    common["sharding"] = sharding or launched_sharding() or "none"
    if prompt is not None:
        # Refuse an argument that is not UTF-8.
        list(decode_lines([os.fsencode(f"{prompt}\n")], "--prompt"))
        _continue(run, prompt, **common, **for_prompt)
        return
    if text in (None, [], ["-"]):
        decoded = decode_lines(sys.stdin.buffer, "standard input")
    else:
        decoded = decode_lines(io.BytesIO(os.fsencode("\n".join([*text, ""]))), "TEXT")
    chunks = iter(lambda: list(islice(decoded, _LINES)), [])
    count = 0
    for lines, too_long in generate_chunks(run, chunks, **common, **for_lines):
        write("".join(f"{line}\n" for line in lines))
        count += too_long
    if count:
        say(f"{count} lines truncated")


def _continue(run: Path, prompt: str, **options: Any) -> None:
    """Write the continuation of a prompt, which ends with a newline, also after an error in the middle of a line."""
    from ..training.evaluation import continue_prompt

    started = False

    def write_part(text: str) -> None:
        nonlocal started
        started = True
        write(text)

    try:
        continue_prompt(run, prompt, write_part, **options)
        # An empty text is a line too.
        started = True
    finally:
        if started:
            write("\n")
