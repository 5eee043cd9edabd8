"""synthesizer evaluate RUN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .long_inputs import ON_LONG_HELP, read_on_long
from .options import Beams, Device, LengthPenalty, MaxTokens, MinTokens, ModelDtype, NoRepeatNgram, Truncate

__all__ = ["evaluate"]


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    data: Annotated[Path | None, typer.Option(help="The data. [default: that of the run]")] = None,
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "test",
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    min_tokens: MinTokens = None,
    max_tokens: MaxTokens = None,
    no_repeat_ngram: NoRepeatNgram = None,
    vectors: Annotated[
        Path | None, typer.Option(help="Word vectors as text, for the similarities of dialogue. [default: the run's]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    on_long: Annotated[str | None, typer.Option(help=ON_LONG_HELP)] = None,
    truncate: Truncate = False,
    device: Device = None,
    dtype: ModelDtype = "float32",
) -> None:
    """Score a run on a split of the data, by the scores of its task and with their signatures."""
    from ..training.evaluation import evaluate_run
    from ..training.summary import describe_evaluation
    from .quiet import quiet_libraries, say

    quiet_libraries()
    long = read_on_long(on_long, truncate)
    results = evaluate_run(
        run,
        data=data,
        split=split,
        truncate=long.truncate,
        device=device,
        dtype=dtype,
        report=say,
        scoring={} if vectors is None else {"vectors": str(vectors)},
        beams=beams,
        length_penalty=length_penalty,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        no_repeat_ngram=no_repeat_ngram,
        split_long=long.split_long,
    )
    if count := results["truncated"] or results["divided"]:
        say(long.describe(count, "inputs"))
    typer.echo(json.dumps(results, ensure_ascii=False) if as_json else describe_evaluation(results))
