"""synthesizer generate RUN [TEXT … | -]."""

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
    """Sampling, if one of these is given."""

    temperature: float | None = option("Divide logits by this; 0 is greedy. [default: 1]", least=0)
    top_k: int | None = option("Sample from the k most probable tokens. [default: all]", least=0)
    top_p: float | None = option("Sample from the fewest tokens with this probability. [default: 1]")
    seed: int | None = option("Seed of sampling. [default: random]", least=0, most=2**63 - 1)


def generate(
    *,
    run: str = argument("RUN", "Folder of a trained run, or the name of one on the hub."),
    text: list[str] | None = argument("TEXT", "Inputs, one line each. [default: -, standard input]", None),
    generation: Generation,
    sampling: Sampling,
    long: LongInputs,
    inference: Inference,
) -> None:
    """Generate text from a trained run, one line for each input line.

    Example: synthesizer generate runs/first "two dogs run on the grass ."
    """
    search, sample = given(**vars(generation)), given(**vars(sampling))
    if sample and (excluded := search.keys() - {"max_new_tokens"}):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in (*sorted(excluded), *sample))
        raise BadParameter(f"got {names}; give options of search or of sampling")
    options = search | sample | long.settings() | given(do_sample=bool(sample))
    from ..data.files import decode_lines
    from ..training.evaluation import generate_chunks

    set_up_libraries(inference.threads)
    if text in (None, [], ["-"]):
        decoded = decode_lines(sys.stdin.buffer, "standard input")
    else:
        decoded = decode_lines(io.BytesIO(os.fsencode("\n".join([*text, ""]))), "TEXT")
    chunks = iter(lambda: list(islice(decoded, _LINES)), [])
    count = 0
    for lines, too_long in generate_chunks(run, chunks, device=inference.device, bf16=inference.bf16, **options):
        write("".join(f"{line}\n" for line in lines))
        count += too_long
    if count:
        say(f"{count} lines truncated")
