"""synthesizer evaluate RUN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from . import options as opt
from .console import say, set_up_libraries, write


def evaluate(
    run: opt.Run,
    data: opt.RunData = None,
    split: Annotated[str, typer.Option(help="Split of the data.")] = "test",
    num_beams: opt.NumBeams = None,
    length_penalty: opt.LengthPenalty = None,
    min_new_tokens: opt.MinNewTokens = None,
    max_new_tokens: opt.MaxNewTokens = None,
    no_repeat_ngram_size: opt.NoRepeatNgramSize = None,
    vectors: Annotated[Path | None, typer.Option(help="Word vectors in text format (dialogue only).")] = None,
    as_json: opt.Json = False,
    on_long: opt.OnLongInput = None,
    truncate: opt.Truncate = False,
    device: opt.Device = None,
    threads: opt.Threads = None,
    bf16: opt.Bf16Weights = False,
    int8: opt.Int8 = False,
    sharding: opt.Sharding = None,
) -> None:
    """Score a run on a split of the data."""
    long = opt.choose_on_long(on_long, truncate)
    from ..training.evaluation import describe_evaluation, evaluate_run
    from ..training.sharding import launched_sharding

    set_up_libraries(threads)
    results = evaluate_run(
        run,
        data=data,
        split=split,
        on_long=long or "error",
        device=device,
        bf16=bf16,
        int8=int8,
        sharding=sharding or launched_sharding() or "none",
        report=say,
        scoring={} if vectors is None else {"vectors": str(vectors)},
        **opt.given(locals(), *opt.GENERATION),
    )
    if results["truncated"]:
        say(f"{results['truncated']} inputs truncated")
    write(f"{json.dumps(results, ensure_ascii=False) if as_json else describe_evaluation(results)}\n")
