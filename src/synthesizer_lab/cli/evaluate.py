"""synthesizer evaluate RUN."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .console import say, set_up_libraries, write
from .options import Generation, Inference, LongInputs, argument, given, option


@dataclass(kw_only=True)
class Options:
    """What to score, and how."""

    run: Path = argument("RUN", "Folder of a trained run.")
    data: Path | None = option("The data. [default: the data of the run]", metavar="PATH")
    split: str = option("Split of the data.", "test")
    generation: Generation
    vectors: Path | None = option("Word vectors in text format (dialogue only).")
    json: bool = option("Print the results as one JSON object.", False)
    long: LongInputs
    inference: Inference


def evaluate(options: Options) -> None:
    """Score a run on a split of the data."""
    long = options.long.settings()
    from ..training.evaluation import describe_evaluation, evaluate_run

    set_up_libraries(options.inference.place.threads)
    results = evaluate_run(
        options.run,
        data=options.data,
        split=options.split,
        report=say,
        scoring={} if options.vectors is None else {"vectors": str(options.vectors)},
        **{"on_long": "error", **long},
        **options.inference.settings(),
        **given(options.generation),
    )
    if results["truncated"]:
        say(f"{results['truncated']} inputs truncated")
    write(f"{json.dumps(results, ensure_ascii=False) if options.json else describe_evaluation(results)}\n")
