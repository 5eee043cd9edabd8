"""synthesizer evaluate RUN."""

from __future__ import annotations

import json
from pathlib import Path

from .console import say, set_up_libraries, write
from .options import Generation, Inference, LongInputs, argument, given, option


def evaluate(
    *,
    run: str = argument("RUN", "Folder of a trained run, or the name of one on the hub."),
    data: Path | None = option("The data. [default: the data of the run]", metavar="PATH"),
    split: str = option("Split of the data.", "test"),
    generation: Generation,
    vectors: Path | None = option("Word vectors in text format (dialogue only)."),
    as_json: bool = option("Print the results as one JSON object.", False, name="--json"),
    long: LongInputs,
    inference: Inference,
) -> None:
    """Score a run on a split of the data.

    Example: synthesizer evaluate runs/first --split test --num-beams 4
    """
    on_long = long.settings()
    from ..training.evaluation import describe_evaluation, evaluate_run

    set_up_libraries(inference.threads)
    results = evaluate_run(
        run,
        data=data,
        split=split,
        report=say,
        scoring={} if vectors is None else {"vectors": str(vectors)},
        device=inference.device,
        bf16=inference.bf16,
        **on_long,
        **given(**vars(generation)),
    )
    if results["truncated"]:
        say(f"{results['truncated']} inputs truncated")
    write(f"{json.dumps(results, ensure_ascii=False) if as_json else describe_evaluation(results)}\n")
