"""synthesizer compare TASK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..tasks import UserError, known_tasks
from .chosen_task import choose_task
from .long_inputs import ON_LONG_HELP, read_on_long
from .options import PRESET_HELP, Beams, Device, LengthPenalty, MaxTokens, MinTokens, NoRepeatNgram, SkipBadLines

if TYPE_CHECKING:
    from ..data.examples import Long

__all__ = ["compare"]


def compare(
    task: Annotated[str, typer.Argument(help=f"What to learn: {', '.join(known_tasks())}.")],
    synthesizers: Annotated[
        list[str],
        typer.Option(
            metavar="ROW,ROW,…",
            help="The rows: SYNTHESIZER[@KEY=VALUE…] each, with settings of its own; SYNTHESIZER-control is widened to "
            "the parameters of random+vanilla, or of @match=OTHER. May be repeated.",
        ),
    ],
    output: Annotated[Path, typer.Option(help="The folder of the comparison, made anew or gone on with.")],
    data: Annotated[Path | None, typer.Option(help="The data, as for train.")] = None,
    source: Annotated[str | None, typer.Option(help="Of translation: source language, as for train.")] = None,
    target: Annotated[str | None, typer.Option(help="Of translation: target language, as for train.")] = None,
    seeds: Annotated[str, typer.Option(metavar="N,N,…", help="Each row is trained with each.")] = "0",
    preset: Annotated[str, typer.Option(help=PRESET_HELP)] = "tiny",
    source_runs: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUNS",
            help="Start from the weights and the tokenizer of runs: the folder of a comparison, or a path with "
            "{synthesizer}, {row} or {seed} in it. A row SYNTHESIZER@from=none has new weights.",
        ),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop each run after minutes of training.")] = None,
    steps: Annotated[int | None, typer.Option(help="Stop each run after updates. [default: the preset's]")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of all rows: of task, model, training or function."),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(help="Part of the data to score the selected checkpoints on; may be repeated. [default: test]"),
    ] = None,
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    min_tokens: MinTokens = None,
    max_tokens: MaxTokens = None,
    no_repeat_ngram: NoRepeatNgram = None,
    on_long: Annotated[str | None, typer.Option(help=f"In the tests. {ON_LONG_HELP}")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="In training, cut what is over the maximum.")] = False,
    drop_long: Annotated[bool, typer.Option("--drop-long", help="In training, leave out what is over it.")] = False,
    skip_bad_lines: SkipBadLines = False,
    device: Device = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32 or bfloat16, of the training, as for train. [default: the preset's]")
    ] = None,
    compile_model: Annotated[bool, typer.Option("--compile", help="Compile the models for training.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json instead of the table.")] = False,
) -> None:
    """Train and score several synthesizers under one budget, and print a table of mean ± sd over seeds.

    Runs, table.md and results.json are in --output. The same command goes on with what was interrupted, and more rows
    or seeds may be added. The status is 1 if a run failed.
    """
    if truncate and drop_long:
        raise typer.BadParameter("--truncate and --drop-long exclude each other")
    from ..tasks import get_task

    task_class = get_task(task)
    long: Long | None = "truncate" if truncate else "drop" if drop_long else None

    from rich.console import Console

    from ..compare.plan import Scoring, Shared
    from ..compare.rows import parse_rows, parse_seeds
    from ..compare.table import markdown_table, print_comparison
    from ..compare.work import compare as work
    from ..training.progress import ProgressReport
    from .quiet import quiet_libraries, say

    quiet_libraries()
    long_tests = read_on_long(on_long, truncate=False)
    search: dict[str, Any] = {
        "beams": beams,
        "length_penalty": length_penalty,
        "min_tokens": min_tokens,
        "max_tokens": max_tokens,
        "no_repeat_ngram": no_repeat_ngram,
        "split_long": long_tests.split_long,
    }
    shortcuts = {"source": source, "target": target, "skip_bad_lines": skip_bad_lines or None}
    chosen, path = choose_task(task_class, data, overrides or [], shortcuts)
    try:
        ending = work(
            shared=Shared(
                task=chosen,
                data=path,
                preset=preset,
                where=source_runs,
                overrides=overrides or [],
                long=long,
                steps=steps,
                minutes=minutes,
                dtype=dtype,
                compile_model=compile_model or None,
            ),
            scoring=Scoring(
                splits=split or ["test"],
                search={name: value for name, value in search.items() if value is not None},
                truncate=long_tests.truncate,
            ),
            rows=parse_rows(synthesizers),
            seeds=parse_seeds(seeds),
            output=output,
            render=markdown_table,
            device=device,
            report=say,
            watch=ProgressReport,
        )
    except KeyboardInterrupt:
        say("stopped; the same command goes on with what is left")
        raise
    if as_json:
        typer.echo(json.dumps(ending.results, ensure_ascii=False))
    else:
        print_comparison(ending.results, Console(highlight=False))
    if ending.signal is not None:
        say("stopped; the same command goes on with what is left")
        raise typer.Exit(128 + ending.signal)
    if failures := ending.failures:
        raise UserError(
            f"{len(failures)} of {len(ending.results['runs'])} runs failed ({failures[0]['row']}, seed "
            f"{failures[0]['seed']}: {failures[0]['reason']}); the same command tries them again"
        )
    say(f"the table is in {output / 'table.md'}, everything in {output / 'results.json'}")
