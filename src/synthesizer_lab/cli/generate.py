"""synthesizer generate RUN [TEXT … | -], or --prompt TEXT."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass
from itertools import islice

from typer import BadParameter

from .console import say, set_up_libraries, write
from .options import Generation, Inference, LongInputs, argument, given, option

# Lines of standard input that are read at a time: enough to sort them by length into batches.
_LINES = 1000


@dataclass(kw_only=True)
class Sampling:
    """Sampling, with --prompt."""

    temperature: float | None = option("Divide logits by this; 0 is greedy. [default: 1]", least=0)
    top_k: int | None = option("Sample from the k most probable tokens. [default: all]", least=0)
    top_p: float | None = option("Sample from the fewest tokens with this probability. [default: 1]")
    seed: int | None = option("Seed of sampling. [default: random]", least=0, most=2**63 - 1)


def generate(
    *,
    run: str = argument("RUN", "Folder of a trained run, or the name of one on the hub."),
    text: list[str] | None = argument("TEXT", "Inputs, one line each. [default: -, standard input]", None),
    prompt: str | None = option("Continue this text (language models only)."),
    generation: Generation,
    sampling: Sampling,
    long: LongInputs,
    inference: Inference,
) -> None:
    """Generate text from a trained run, one line for each input line.

    Example: synthesizer generate runs/first "two dogs run on the grass ."
    """
    for_lines, for_prompt = given(**vars(generation)) | long.settings(), given(**vars(sampling))
    common = given(max_new_tokens=for_lines.pop("max_new_tokens", None))
    if excluded := for_prompt if prompt is None else for_lines:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in excluded)
        raise BadParameter(f"got {names} {'without' if prompt is None else 'with'} --prompt; leave one out")
    if prompt is not None and text:
        raise BadParameter("got TEXT with --prompt; leave one out")
    from ..data.files import decode_lines
    from ..training.evaluation import continue_prompt, generate_chunks

    set_up_libraries(inference.threads)
    common |= {"device": inference.device, "bf16": inference.bf16}
    if prompt is not None:
        # Refuse an argument that is not UTF-8.
        list(decode_lines([os.fsencode(f"{prompt}\n")], "--prompt"))
        write(f"{continue_prompt(run, prompt, **common, **for_prompt)}\n")
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
