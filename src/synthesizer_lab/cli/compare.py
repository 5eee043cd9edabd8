"""synthesizer compare TASK."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shutil import get_terminal_size

import typer

from ..errors import UserError
from .console import say, set_up_libraries, write
from .options import Device, Generation, TaskData, Training, given, option, whole_numbers


def compare(
    *,
    data: TaskData,
    synthesizers: list[str] = option(
        "The rows, each SYNTHESIZER[@KEY=VALUE…] with its own settings. SYNTHESIZER-control is a wider model with as "
        "many parameters as random+vanilla, or as @match=OTHER. Can be repeated.",
        ...,
        metavar="ROW,ROW,…",
    ),
    output: Path = option("Folder of the comparison; an unfinished one is continued.", ...),
    seeds: str = option("Train each row once with each seed.", "0", metavar="N,N,…"),
    source_runs: str | None = option(
        "Start from the models and tokenizers of runs: a path with {row}, {synthesizer} or {seed} in it. A row "
        "SYNTHESIZER@from=none gets new weights.",
        name="--from",
        metavar="RUNS",
    ),
    training: Training,
    split: list[str] | None = option(
        "Split to score the best checkpoints on. Can be repeated. [default: test]", metavar="SPLIT"
    ),
    generation: Generation,
    jobs: int = option("Train N runs at the same time, on as many GPUs or sharing the CPU.", 1, least=1),
    place: Device,
    as_json: bool = option("Print the results as one JSON object.", False, name="--json"),
) -> None:
    """Train and score several synthesizers, and print one table.

    Each row gets the same budget; the table has mean ± sd over the seeds. --output receives the runs, index.html,
    table.md and results.json. Run the same command again to continue, with more rows or seeds if wanted. The exit code
    is 1 if a run failed.

    Example: synthesizer compare translation --synthesizers vanilla,random,random+vanilla --seeds 0,1 --output runs/all
    """
    from ..compare.plan import Comparison
    from ..compare.rows import parse_rows
    from ..compare.run import compare as run_comparison
    from ..compare.tables import terminal_page
    from ..training.callbacks import ProgressReport

    set_up_libraries(place.threads)
    task, path = data.read()
    settings = training.settings()
    comparison = Comparison(
        task=task,
        data=path,
        preset=settings.pop("preset", "tiny"),
        source=source_runs,
        overrides=data.overrides or [],
        training=settings,
        splits=split or ["test"],
        generation=given(**vars(generation)),
    )
    numbers, rows = whole_numbers("--seeds", seeds, least=0), parse_rows(synthesizers)
    if len({*numbers}) < len(numbers):
        raise UserError(f"got --seeds {seeds}; expected each seed once")
    results, signal = run_comparison(
        comparison, rows, numbers, output, jobs=jobs, device=place.device, report=say, callbacks=[ProgressReport()]
    )
    # In a pipe the lines are as long as the table is wide.
    width = get_terminal_size().columns if sys.stdout.isatty() else None
    write(f"{json.dumps(results, ensure_ascii=False)}\n" if as_json else terminal_page(results, width))
    if signal is not None:
        say("stopped; run the same command again to continue")
        raise typer.Exit(128 + signal)
    asked = [run for run in results["runs"] if run["seed"] in numbers and run["row"] in {row.label for row in rows}]
    if failures := [run for run in asked if run["status"] == "failed"]:
        first = failures[0]
        raise UserError(
            f"{len(failures)} of {len(asked)} runs failed ({first['row']}, seed {first['seed']}: "
            f"{first['reason']}); run the same command again to retry them"
        )
    say(f"page: {output / 'index.html'}, table: {output / 'table.md'}, all results: {output / 'results.json'}")
