"""synthesizer evaluate RUN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["evaluate"]


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the data. [default: that of the run]")] = None,
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "test",
    beams: Annotated[int, typer.Option(min=1, help="Beams of the search; 1 is greedy.")] = 4,
    length_penalty: Annotated[
        float, typer.Option(help="Hypotheses of n tokens are ranked by log-probability / n^penalty.")
    ] = 0.6,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut sentences over the maximum length.")] = False,
) -> None:
    """Score a run on a split of the data: BLEU and chrF, with sacreBLEU's signatures."""
    from ..report.results import describe_evaluation
    from ..training.evaluation import evaluate_run
    from .quiet import quiet_libraries, say

    quiet_libraries()
    results = evaluate_run(
        run, data=data, split=split, beams=beams, length_penalty=length_penalty, truncate=truncate, report=say
    )
    if results["truncated"]:
        say(f"{results['truncated']} sentences truncated")
    typer.echo(json.dumps(results, ensure_ascii=False) if as_json else describe_evaluation(results))
