"""synthesizer train TASK."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..tasks import known_tasks
from .chosen_task import choose_task
from .options import PRESET_HELP, Device, SkipBadLines

if TYPE_CHECKING:
    from ..data.examples import Long

__all__ = ["train"]

_SYNTHESIZER, _PRESET, _SEED = "random+vanilla", "tiny", 1


def train(
    task: Annotated[str, typer.Argument(help=f"What to learn: {', '.join(known_tasks())}.")],
    output: Annotated[Path | None, typer.Option(help="The folder of the run, made anew.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The data: a folder with files of the splits train and valid, as the guide of the task has them "
            "(translation: {train,valid}.{language}); of most tasks also hub:OWNER/NAME. [default: translation and "
            "language-modeling have some of their own]"
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Of translation: source language, the suffix of its files.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Of translation: target language, the suffix of its files.")
    ] = None,
    synthesizer: Annotated[
        str | None,
        typer.Option(
            help="Functions joined by +; YAML for a list (one per layer) or {encoder: …, decoder: …}. "
            f"[default: {_SYNTHESIZER}]"
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help=f"{PRESET_HELP} [default: {_PRESET}]")] = None,
    source_run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Start from the weights and the tokenizer of a run. The model is its own then, synthesizer included; "
            "the preset says how to train.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Stop after minutes of training, validation excluded; with --steps, at whichever comes first."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after updates. [default: the preset's]")] = None,
    seed: Annotated[int | None, typer.Option(help=f"Of weights, batches and dropout. [default: {_SEED}]")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of task, model, training or function (random.std=0.1)."
        ),
    ] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut what is over the maximum length.")] = False,
    drop_long: Annotated[bool, typer.Option("--drop-long", help="Leave out examples over the maximum length.")] = False,
    skip_bad_lines: SkipBadLines = False,
    device: Device = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, or bfloat16: matrix products and attention in bfloat16 (autocast), weights, optimizer and "
            "sums in float32. [default: the preset's, float32]"
        ),
    ] = None,
    compile_model: Annotated[
        bool, typer.Option("--compile", help="Compile the model for training: a minute or so at the start.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Train some steps, say what the run would take, and write nothing."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run at --output.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run at --output.")] = False,
) -> None:
    """Train a model. Ctrl-C stops with a checkpoint, from which --resume goes on."""
    if resume and overwrite:
        raise typer.BadParameter("--resume and --overwrite exclude each other")
    if truncate and drop_long:
        raise typer.BadParameter("--truncate and --drop-long exclude each other")
    if resume and dry_run:
        raise typer.BadParameter("--resume and --dry-run exclude each other")
    if output is None and not dry_run:
        raise typer.BadParameter("--output is missing")

    from ..tasks import get_task

    task_class = get_task(task)
    long: Long | None = "truncate" if truncate else "drop" if drop_long else None

    from ..training.dry_run import dry_run as rehearse
    from ..training.progress import ProgressReport
    from ..training.session import resume_run, start_run
    from ..training.settings import parse_synthesizer, read_settings
    from ..training.source import Source
    from ..training.summary import describe_dry_run, describe_training
    from .quiet import quiet_libraries, say

    quiet_libraries()
    common: dict[str, Any] = {"device": device, "report": say, "watch": ProgressReport}
    shortcuts = {"source": source, "target": target, "skip_bad_lines": skip_bad_lines or None}
    if resume:
        given = {
            "task": task,
            **shortcuts,
            "from": None if source_run is None else str(source_run.resolve()),
            "synthesizer": None if synthesizer is None else parse_synthesizer(synthesizer),
            "preset": preset,
            "seed": seed,
            "overrides": overrides or None,
            "long_sentences": long,
            "dtype": dtype,
            "compile": compile_model or None,
        }
        expected = {name: value for name, value in given.items() if value is not None}
        # For the type checker: without an output there is only --dry-run, which is no --resume.
        assert output is not None
        outcome = resume_run(output, expected=expected, data=data, steps=steps, minutes=minutes, **common)
    else:
        chosen, path = choose_task(task_class, data, overrides or [], shortcuts)
        start = None if source_run is None else Source.open(source_run, task_class)
        settings = read_settings(
            synthesizer=_SYNTHESIZER if synthesizer is None and start is None else synthesizer,
            preset=_PRESET if preset is None else preset,
            seed=_SEED if seed is None else seed,
            overrides=overrides or [],
            long=long,
            steps=steps,
            minutes=minutes,
            dtype=dtype,
            compile_model=compile_model or None,
            task=task_class,
            start=None if start is None else start.settings,
        )
        if dry_run or output is None:
            typer.echo(describe_dry_run(rehearse(chosen, path, settings, source=start, device=device, report=say)))
            return
        outcome = start_run(
            task=chosen, data=path, settings=settings, output=output, source=start, overwrite=overwrite, **common
        )
    say(describe_training(outcome.metrics))
    if outcome.signal is not None:
        say(f"stopped; to go on: synthesizer train {task} --output {shlex.quote(str(output))} --resume")
        raise typer.Exit(128 + outcome.signal)
    say(f"the best model is in {output}")
