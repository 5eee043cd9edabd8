"""synthesizer train TASK."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer import BadParameter

from ..training.options import Sharding
from .console import say, set_up_libraries, write
from .options import Device, TaskData, Training, given, option, setting

_SYNTHESIZER, _PRESET = "random+vanilla", "tiny"


@dataclass(kw_only=True)
class RunTraining(Training):
    """Training."""

    seed: int | None = setting("seed", least=0, most=2**32 - 1)
    sharding: Sharding | None = setting("sharding")
    batches_per_update: int | None = option(
        "Batches of an update, of all processes together; also changes them when resuming.", least=1
    )


def train(
    *,
    data: TaskData,
    output: Path | None = option("Folder to write the run to."),
    synthesizer: str | None = option(
        "A function, several joined by +, or groups of heads: random:6/vanilla:2. As YAML, a list with one per layer, "
        f"or {{encoder: …, decoder: …}}. [default: {_SYNTHESIZER}]"
    ),
    source_run: Path | None = option(
        "Start from the model and tokenizer of another run; the preset then only sets how to train.",
        name="--from",
        metavar="RUN",
    ),
    training: RunTraining,
    place: Device,
    dry_run: bool = option("Train a few steps, print what the run would cost, and write nothing.", False),
    resume: bool = option("Continue the run at --output.", False),
    resume_if_exists: bool = option("Continue the run at --output if there is one, else start it.", False),
    overwrite: bool = option("Replace the run at --output.", False),
) -> None:
    """Train a model. Ctrl-C saves a checkpoint, and --resume continues from it.

    Example: synthesizer train translation --data multi30k --source en --target de --output runs/first
    """
    modes = {"--resume": resume, "--resume-if-exists": resume_if_exists, "--overwrite": overwrite}
    if len(both := [name for name, asked in {**modes, "--dry-run": dry_run}.items() if asked]) > 1:
        raise BadParameter(f"got {' and '.join(both)}; give one of them")
    overrides = data.overrides or []
    if training.batches_per_update is not None and any("gradient_accumulation_steps" in entry for entry in overrides):
        raise BadParameter("got --batches-per-update and --set gradient_accumulation_steps; give one of them")
    if output is None and not dry_run:
        raise BadParameter("--output is missing")
    settings = training.settings()
    from ..training.callbacks import ProgressReport
    from ..training.device import any_process, choose_training_device
    from ..training.evaluation import describe_training
    from ..training.run import RunCompleteError, resume_run, start_run
    from ..training.run import dry_run as run_dry
    from ..training.run_folder import PretrainedRun, RunFolder
    from ..training.settings import parse_override, parse_synthesizer, read_settings

    set_up_libraries(place.threads)
    how: dict[str, Any] = {
        "batches_per_update": settings.pop("batches_per_update", None),
        "device": place.device,
        "report": say,
    }
    if resume_if_exists and output is not None:
        choose_training_device(place.device)
        # A process may see a new folder later than others.
        resume = any_process(RunFolder(output).exists)
    if resume and output is not None:
        changed = {name: settings.pop(name, None) for name in ("max_steps", "minutes", "sharding")}
        if changed["max_steps"] is not None or changed["minutes"] is not None:
            # The other limit may be one of --set.
            changed |= {key: value for key, value in map(parse_override, overrides) if changed.get(key, 0) is None}
        expected = given(task=data.task, overrides=data.overrides)
        expected |= data.task_options() | settings
        if source_run is not None:
            expected["from"] = str(source_run.resolve())
        if synthesizer is not None:
            expected["synthesizer"] = parse_synthesizer(synthesizer)
        try:
            outcome = resume_run(
                output, expected=expected, data=data.data, callbacks=[ProgressReport()], **changed, **how
            )
        except RunCompleteError as error:
            if not resume_if_exists:
                raise
            say(str(error))
            return
    else:
        task, path = data.read()
        start = None if source_run is None else PretrainedRun.open(source_run, type(task))
        read = read_settings(
            synthesizer=_SYNTHESIZER if synthesizer is None and start is None else synthesizer,
            overrides=overrides,
            task=type(task),
            start=None if start is None else start.settings,
            **{"preset": _PRESET, **settings},
        )
        if output is None or dry_run:
            write(f"{run_dry(task, path, read, pretrained=start, **how)}\n")
            return
        how |= {"pretrained": start, "overwrite": overwrite, "callbacks": [ProgressReport()]}
        outcome = start_run(task=task, data=path, settings=read, output=output, **how)
    say(describe_training(outcome.metrics))
    if outcome.signal is not None and not outcome.metrics["finished"]:
        say(f"stopped; continue with: synthesizer train {data.task} --output {shlex.quote(str(output))} --resume")
        raise typer.Exit(128 + outcome.signal)
    say(f"the best model is in {output}")
