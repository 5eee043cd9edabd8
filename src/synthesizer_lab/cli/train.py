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
class Options:
    """What to train, how, and where to."""

    data: TaskData
    output: Path | None = option("Folder to write the run to.")
    synthesizer: str | None = option(
        "A function, several joined by +, or groups of heads: random:6/vanilla:2. As YAML, a list with one per layer, "
        f"or {{encoder: …, decoder: …}}. [default: {_SYNTHESIZER}]"
    )
    source_run: Path | None = option(
        "Start from the model and tokenizer of another run; the preset then only sets how to train.",
        name="--from",
        metavar="RUN",
    )
    training: Training
    seed: int | None = setting("seed")
    streaming: bool = setting("streaming")
    sharding: Sharding | None = setting("sharding")
    batches_per_update: int | None = option(
        "Batches of an update, of all processes together; also changes them when resuming.", least=1
    )
    place: Device
    dry_run: bool = option("Train a few steps, print what the run would cost, and write nothing.", False)
    resume: bool = option("Continue the run at --output.", False)
    resume_if_exists: bool = option("Continue the run at --output if there is one, else start it.", False)
    overwrite: bool = option("Replace the run at --output.", False)

    def settings(self) -> dict[str, Any]:
        """The options of training that were given."""
        from ..training.sharding import launched_sharding

        launched = launched_sharding()
        return (
            self.training.settings()
            | ({"sharding": launched} if launched else {})
            | given(self, "seed", "streaming", "sharding")
        )

    def check(self) -> None:
        """Raise BadParameter for options that exclude each other."""
        modes = ("resume", "resume_if_exists", "overwrite", "dry_run")
        if len(both := [f"--{name.replace('_', '-')}" for name in given(self, *modes)]) > 1:
            raise BadParameter(f"got {' and '.join(both)}; give one of them")
        overrides = self.data.overrides or []
        if self.batches_per_update is not None and any("gradient_accumulation_steps" in each for each in overrides):
            raise BadParameter("got --batches-per-update and --set gradient_accumulation_steps; give one of them")
        if self.output is None and not self.dry_run:
            raise BadParameter("--output is missing")


def train(options: Options) -> None:
    """Train a model. Ctrl-C saves a checkpoint, and --resume continues from it."""
    options.check()
    options.training.settings()
    from ..training.callbacks import ProgressReport
    from ..training.device import any_process, choose_training_device
    from ..training.dry_run import describe_dry_run, dry_run
    from ..training.evaluation import describe_training
    from ..training.run import RunCompleteError, resume_run, start_run
    from ..training.run_folder import PretrainedRun, RunFolder
    from ..training.settings import parse_synthesizer, read_settings

    set_up_libraries(options.place.threads)
    task, output, device, settings = options.data.task, options.output, options.place.device, options.settings()
    how: dict[str, Any] = {"batches_per_update": options.batches_per_update, "device": device, "report": say}
    resume = options.resume
    if options.resume_if_exists and output is not None:
        choose_training_device(device)
        (run := RunFolder(output.resolve())).remove_left()
        # A process may see a new folder later than others.
        resume = any_process(run.exists)
    if resume and output is not None:
        changed = {name: settings.pop(name, None) for name in ("max_steps", "minutes", "sharding")}
        expected = given(options.data, "task", "overrides", "source", "target", "skip_bad_lines")
        expected |= given(options.training, "preset") | settings
        if options.source_run is not None:
            expected["from"] = str(options.source_run.resolve())
        if options.synthesizer is not None:
            expected["synthesizer"] = parse_synthesizer(options.synthesizer)
        try:
            outcome = resume_run(
                output, expected=expected, data=options.data.data, callbacks=[ProgressReport()], **changed, **how
            )
        except RunCompleteError as error:
            if not options.resume_if_exists:
                raise
            say(str(error))
            return
    else:
        chosen, path = options.data.read()
        start = None if options.source_run is None else PretrainedRun.open(options.source_run, type(chosen))
        read = read_settings(
            synthesizer=_SYNTHESIZER if options.synthesizer is None and start is None else options.synthesizer,
            preset=options.training.preset or _PRESET,
            overrides=options.data.overrides or [],
            task=type(chosen),
            start=None if start is None else start.settings,
            **settings,
        )
        if output is None or options.dry_run:
            write(describe_dry_run(dry_run(chosen, path, read, pretrained=start, **how)) + "\n")
            return
        how |= {"pretrained": start, "overwrite": options.overwrite, "callbacks": [ProgressReport()]}
        outcome = start_run(task=chosen, data=path, settings=read, output=output, **how)
    say(describe_training(outcome.metrics))
    if outcome.signal is not None and not outcome.metrics["finished"]:
        say(f"stopped; continue with: synthesizer train {task} --output {shlex.quote(str(output))} --resume")
        raise typer.Exit(128 + outcome.signal)
    say(f"the best model is in {output}")
