"""synthesizer train TASK."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import BadParameter, Option

from . import options as opt
from .console import say, set_up_libraries, write

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
            help="A function, several joined by +, or groups of heads: random:6/vanilla:2. As YAML, a list with one "
            "per layer, or {encoder: …, decoder: …}. "
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
    seed: Annotated[int | None, opt.number("Seed of weights, batches and dropout. [default: 0]", 0, 2**32 - 1)] = None,
    overrides: opt.Set = None,
    on_long: opt.OnLong = None,
    truncate: opt.Truncate = False,
    skip_bad_lines: opt.SkipBadLines = False,
    streaming: Annotated[
        bool, Option("--streaming", help="Tokenize the training text while it is read, without a pass over it before.")
    ] = False,
    batches_per_update: Annotated[
        int | None, opt.number("Batches of an update, of all processes together; also changes them when resuming.", 1)
    ] = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
    bf16: opt.Bf16 = False,
    torch_compile: opt.TorchCompile = False,
    sharding: opt.Sharding = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Train a few steps, print what the run would cost, and write nothing.")
    ] = False,
    resume: Annotated[bool, Option("--resume", help="Continue the run at --output.")] = False,
    resume_if_exists: Annotated[
        bool, Option("--resume-if-exists", help="Continue the run at --output if there is one, else start it.")
    ] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the run at --output.")] = False,
) -> None:
    """Train a model. Ctrl-C saves a checkpoint, and --resume continues from it."""
    modes = {"--resume": resume, "--resume-if-exists": resume_if_exists, "--overwrite": overwrite}
    if len(both := [name for name, asked in {**modes, "--dry-run": dry_run}.items() if asked]) > 1:
        raise BadParameter(f"got {' and '.join(both)}; give one of them")
    if batches_per_update is not None and any("gradient_accumulation_steps" in entry for entry in overrides or []):
        raise BadParameter("got --batches-per-update and --set gradient_accumulation_steps; give one of them")
    if output is None and not dry_run:
        raise BadParameter("--output is missing")
    on_long = opt.choose_on_long(on_long, truncate)
    task_options = opt.given(locals(), "source", "target", "skip_bad_lines")
    settings = opt.given(locals(), "seed", "on_long", "bf16", "torch_compile", "streaming")

    from ..tasks import get_task
    from ..training.callbacks import ProgressReport
    from ..training.device import any_process, choose_training_device
    from ..training.dry_run import describe_dry_run
    from ..training.dry_run import dry_run as run_dry
    from ..training.evaluation import describe_training
    from ..training.run import RunCompleteError, resume_run, start_run
    from ..training.run_folder import PretrainedRun, RunFolder
    from ..training.settings import parse_synthesizer, read_settings
    from ..training.sharding import launched_sharding

    set_up_libraries(threads)
    sharding = sharding or launched_sharding()
    task_class = get_task(task)
    budget: dict[str, Any] = {"batches_per_update": batches_per_update, "device": device, "report": say}
    common: dict[str, Any] = {**budget, "callbacks": [ProgressReport()]}
    if resume_if_exists:
        assert output is not None
        choose_training_device(device)
        (run := RunFolder(output.resolve())).remove_left()
        # A process may see a new folder later than others.
        resume = any_process(run.exists)
    if resume:
        assert output is not None
        expected = {**opt.given(locals(), "task", "preset", "overrides"), **task_options, **settings}
        if source_run is not None:
            expected["from"] = str(source_run.resolve())
        if synthesizer is not None:
            expected["synthesizer"] = parse_synthesizer(synthesizer)
        try:
            outcome = resume_run(
                output, expected=expected, data=data, max_steps=steps, minutes=minutes, sharding=sharding, **common
            )
        except RunCompleteError as error:
            if not resume_if_exists:
                raise
            say(str(error))
            return
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
            sharding=sharding,
            **settings,
        )
        if dry_run or output is None:
            write(describe_dry_run(run_dry(chosen, path, read, pretrained=start, **budget)) + "\n")
            return
        outcome = start_run(
            task=chosen, data=path, settings=read, output=output, pretrained=start, overwrite=overwrite, **common
        )
    say(describe_training(outcome.metrics))
    if outcome.signal is not None and not outcome.metrics["finished"]:
        say(f"stopped; continue with: synthesizer train {task} --output {shlex.quote(str(output))} --resume")
        raise typer.Exit(128 + outcome.signal)
    say(f"the best model is in {output}")
