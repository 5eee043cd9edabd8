"""synthesizer train TASK."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import BadParameter, Option

from . import options as opt
from .console import say, set_up_libraries

_SYNTHESIZER, _PRESET = "random+vanilla", "tiny"


def train(
    task: opt.TaskName,
    output: Annotated[Path | None, Option(help="Folder to write the run to.")] = None,
    data: opt.Data = None,
    source: opt.Source = None,
    target: opt.Target = None,
    synthesizer: Annotated[
        str | None,
        Option(
            help="A function, or several joined by +. As YAML, a list with one per layer, or {encoder: …, decoder: …}. "
            f"[default: {_SYNTHESIZER}]"
        ),
    ] = None,
    preset: opt.Preset = None,
    source_run: Annotated[
        Path | None,
        Option(
            "--from",
            metavar="RUN",
            help="Start from the model and tokenizer of another run; the preset then only sets how to train.",
        ),
    ] = None,
    minutes: opt.Minutes = None,
    steps: opt.Steps = None,
    seed: Annotated[int | None, opt.number("Seed of weights, batches and dropout. [default: 0]")] = None,
    overrides: opt.Set = None,
    on_long: opt.OnLong = None,
    truncate: opt.Truncate = False,
    skip_bad_lines: opt.SkipBadLines = False,
    device: opt.Device = None,
    bf16: opt.Bf16 = False,
    torch_compile: opt.TorchCompile = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Train a few steps, print what the run would cost, and write nothing.")
    ] = False,
    resume: Annotated[bool, Option("--resume", help="Continue the run at --output.")] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the run at --output.")] = False,
) -> None:
    """Train a model. Ctrl-C saves a checkpoint, and --resume continues from it."""
    if resume and (overwrite or dry_run):
        raise BadParameter(f"got --resume and {'--overwrite' if overwrite else '--dry-run'}; give one of them")
    if output is None and not dry_run:
        raise BadParameter("--output is missing")
    on_long = opt.choose_on_long(on_long, truncate)
    task_options = opt.given(locals(), "source", "target", "skip_bad_lines")
    settings = opt.given(locals(), "seed", "on_long", "bf16", "torch_compile")

    from ..tasks import get_task
    from ..training.callbacks import ProgressReport
    from ..training.dry_run import describe_dry_run
    from ..training.dry_run import dry_run as run_dry
    from ..training.evaluation import describe_training
    from ..training.run import resume_run, start_run
    from ..training.run_folder import PretrainedRun
    from ..training.settings import parse_synthesizer, read_settings

    set_up_libraries()
    task_class = get_task(task)
    common: dict[str, Any] = {"device": device, "report": say, "callbacks": [ProgressReport()]}
    if resume:
        assert output is not None
        expected = {**opt.given(locals(), "task", "preset", "overrides"), **task_options, **settings}
        if source_run is not None:
            expected["from"] = str(source_run.resolve())
        if synthesizer is not None:
            expected["synthesizer"] = parse_synthesizer(synthesizer)
        outcome = resume_run(output, expected=expected, data=data, max_steps=steps, minutes=minutes, **common)
    else:
        chosen, path = opt.choose_task(task, data, overrides or [], task_options)
        start = None if source_run is None else PretrainedRun.open(source_run, task_class)
        read = read_settings(
            synthesizer=_SYNTHESIZER if synthesizer is None and start is None else synthesizer,
            preset=preset or _PRESET,
            overrides=overrides or [],
            task=task_class,
            start=None if start is None else start.settings,
            max_steps=steps,
            minutes=minutes,
            **settings,
        )
        if dry_run or output is None:
            typer.echo(describe_dry_run(run_dry(chosen, path, read, pretrained=start, device=device, report=say)))
            return
        outcome = start_run(
            task=chosen, data=path, settings=read, output=output, pretrained=start, overwrite=overwrite, **common
        )
    say(describe_training(outcome.metrics))
    if outcome.signal is not None and not outcome.metrics["finished"]:
        say(f"stopped; continue with: synthesizer train {task} --output {shlex.quote(str(output))} --resume")
        raise typer.Exit(128 + outcome.signal)
    say(f"the best model is in {output}")
