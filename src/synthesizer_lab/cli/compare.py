"""synthesizer compare TASK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UserError
from . import options as opt
from .console import say, set_up_libraries, write


def compare(
    task: opt.TaskName,
    synthesizers: Annotated[
        list[str],
        typer.Option(
            metavar="ROW,ROW,…",
            help="The rows, each SYNTHESIZER[@KEY=VALUE…] with its own settings. SYNTHESIZER-control is a wider model "
            "with as many parameters as random+vanilla, or as @match=OTHER. Can be repeated.",
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder of the comparison; an unfinished one is continued.")],
    data: opt.Data = None,
    source: opt.Source = None,
    target: opt.Target = None,
    seeds: Annotated[str, typer.Option(metavar="N,N,…", help="Train each row once with each seed.")] = "0",
    preset: opt.Preset = None,
    source_runs: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUNS",
            help="Start from the models and tokenizers of runs: a path with {row}, {synthesizer} or {seed} in it. "
            "A row SYNTHESIZER@from=none gets new weights.",
        ),
    ] = None,
    minutes: opt.Minutes = None,
    steps: opt.Steps = None,
    overrides: opt.Set = None,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="SPLIT", help="Split to score the best checkpoints on. Can be repeated. [default: test]"),
    ] = None,
    num_beams: opt.NumBeams = None,
    length_penalty: opt.LengthPenalty = None,
    min_new_tokens: opt.MinNewTokens = None,
    max_new_tokens: opt.MaxNewTokens = None,
    no_repeat_ngram_size: opt.NoRepeatNgramSize = None,
    on_long: opt.OnLong = None,
    truncate: opt.Truncate = False,
    skip_bad_lines: opt.SkipBadLines = False,
    jobs: Annotated[int, opt.number("Train N runs at the same time, on as many GPUs or sharing the CPU.", 1)] = 1,
    device: opt.Device = None,
    threads: opt.Threads = None,
    bf16: opt.Bf16 = False,
    torch_compile: opt.TorchCompile = False,
    as_json: opt.Json = False,
) -> None:
    """Train and score several synthesizers, and print one table.

    Each row gets the same budget; the table has mean ± sd over the seeds. --output receives the runs, table.md and
    results.json. Run the same command again to continue, with more rows or seeds if wanted. The exit code is 1 if a run
    failed.
    """
    flags = {**locals(), "max_steps": steps}
    long = opt.choose_on_long(on_long, truncate)
    from rich.console import Console

    from ..compare.plan import Comparison
    from ..compare.rows import parse_rows, parse_seeds
    from ..compare.run import compare as run_comparison
    from ..compare.tables import print_comparison
    from ..training.callbacks import ProgressReport

    set_up_libraries(threads)
    chosen, path = opt.choose_task(task, data, overrides or [], opt.given(flags, "source", "target", "skip_bad_lines"))
    comparison = Comparison(
        task=chosen,
        data=path,
        preset=preset or "tiny",
        source=source_runs,
        overrides=overrides or [],
        training=opt.given(flags, "max_steps", "minutes", "bf16", "torch_compile"),
        splits=split or ["test"],
        generation=opt.given(flags, *opt.GENERATION),
        on_long=long,
    )
    rows, row_seeds = parse_rows(synthesizers), parse_seeds(seeds)
    common: dict[str, Any] = {"jobs": jobs, "device": device, "report": say, "callbacks": [ProgressReport()]}
    results, signal = run_comparison(comparison, rows, row_seeds, output, **common)
    if as_json:
        write(json.dumps(results, ensure_ascii=False) + "\n")
    else:
        print_comparison(results, Console(highlight=False))
    if signal is not None:
        say("stopped; run the same command again to continue")
        raise typer.Exit(128 + signal)
    if failures := [run for run in results["runs"] if run["status"] == "failed"]:
        first = failures[0]
        raise UserError(
            f"{len(failures)} of {len(results['runs'])} runs failed ({first['row']}, seed {first['seed']}: "
            f"{first['reason']}); run the same command again to retry them"
        )
    say(f"table: {output / 'table.md'}, all results: {output / 'results.json'}")
