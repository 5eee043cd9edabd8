"""Start a run, or continue one: everything is checked before anything is written."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from ..data.hub import is_hub_name
from ..tasks import UserError
from ..tasks.base import Task
from .callbacks import LogFile, StopRequest, StopWhenDue
from .checkpoint import Checkpoint
from .clock import TrainingClock
from .device import choose_training_device, describe_device
from .distributed import by_main_process, join, main_process_alone
from .failures import shortage_reported
from .preparation import Data, Materials, Report, prepare
from .run_folder import RunFolder, data_path, kept_path
from .settings import Settings, TrainingArguments
from .source import Source
from .trainer import SynthesizerTrainer

__all__ = ["Outcome", "Report", "Watch", "resume_run", "start_run"]

Watch = Callable[[TrainingClock, TrainingArguments], AbstractContextManager[TrainerCallback]]
_PACKAGES = ("synthetic-attention", "torch", "transformers", "accelerate", "tokenizers")


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        metrics: as metrics.json has them.
        signal: what stopped it before its end; None of a run that came to it.
        received: the signal that asked to stop, though it may have come too late to stop this run.
    """

    metrics: dict[str, Any]
    signal: int | None
    received: int | None


def start_run(
    *,
    task: Task[Any, Any],
    data: Path,
    settings: Settings,
    output: Path,
    source: Source | None = None,
    overwrite: bool = False,
    device: str | None = None,
    report: Report = print,
    watch: Watch | None = None,
) -> Outcome:
    """Train a model on `data` into the folder `output`.

    Under torchrun every process calls this; the first one writes, and the others wait for it.

    Args:
        source: the run to start from; `settings` were read with its own as their `start`.
        overwrite: replace the run that is at `output`.
        device: "cpu", "cuda" or what else PyTorch has; by default the accelerator that is there, or else the CPU.
        report: gets a line for what a user should know.
        watch: makes the callback that shows progress; it is entered around training.

    Raises:
        UserError: the data or the output cannot be used. Nothing has been written then.
    """
    place = choose_training_device(device)
    join(place)
    # Resolved: a folder that is a link, or the one that we are in, can then be replaced like any other.
    run = RunFolder(output.resolve())
    run.check_new(overwrite)
    if not is_hub_name(data) and data.resolve().is_relative_to(run.path):
        raise UserError(f"{data}: the data is inside {output}, which would be replaced; choose another --output")
    if source is not None and source.run.path.is_relative_to(run.path):
        raise UserError(f"{source.run.path}: the run to start from would be replaced; choose another --output")
    if overwrite and (run.path / "run.yaml").is_file():
        # Not after minutes of reading.
        with by_main_process(run.alone):
            pass
    task.check()
    splits = Data.read(task, data)
    materials = prepare(task, splits, settings, report, source=source)
    info = {
        "task": task.name,
        "options": task.options(),
        "data": kept_path(data),
        "commands": [_command()],
        **({} if source is None else {"from": source.record()}),
        "settings": settings.to_dict(),
        "fingerprints": splits.fingerprints(),
        "versions": _versions(task, place),
    }
    with by_main_process(lambda: run.created(info, materials.tokenizer, overwrite)):
        return _train(task, run, settings, materials, None, place, report, watch)


def resume_run(
    output: Path,
    *,
    expected: Mapping[str, Any] | None = None,
    data: Path | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    device: str | None = None,
    report: Report = print,
    watch: Watch | None = None,
) -> Outcome:
    """Continue the run at `output` from its last checkpoint, as if it had never stopped.

    Args:
        expected: settings, by their names in run.yaml, that must be those of the run; "from" is the path of its source.
        data: where the data is now, if not where it was.
        steps, minutes: another end.
        device, report, watch: as for `start_run`. On another device the rest of the run has other rounding errors.

    Raises:
        UserError: there is no run or it is damaged, its settings or data are others, it is complete already, or
            another process is training it.
    """
    place = choose_training_device(device)
    join(place)
    run = RunFolder(output.resolve())
    info = run.read_info()
    with by_main_process(run.alone):
        settings = _read_settings(info, output, expected or {}).with_budget(steps, minutes)
        task = run.read_task(info)
        task.check()
        path = data_path(info, data)
        splits = Data.read(task, path)
        for split, found in splits.fingerprints().items():
            if found != info["fingerprints"][split]:
                raise UserError(f"{path}: the {split} data is not what {output} was started with")
        tokenizer = run.load_tokenizer()
        checkpoint = run.last_checkpoint()
        _refuse_complete(checkpoint, settings.training)
        source = _read_source(info, output, task) if checkpoint is None else None
        materials = prepare(task, splits, settings, report, tokenizer, source)
        info.update(
            data=kept_path(path),
            settings=settings.to_dict(),
            commands=[*info["commands"], _command()],
            resumed_with=[*info.get("resumed_with", []), _versions(task, place)],
        )
        main_process_alone(run.remove_partial)
        main_process_alone(lambda: run.write_info(info))
        report(
            f"resuming {output} from {checkpoint.path.name if checkpoint else 'the start: it has no checkpoint yet'}"
        )
        return _train(task, run, settings, materials, checkpoint, place, report, watch)


def _read_settings(info: Mapping[str, Any], output: Path, expected: Mapping[str, Any]) -> Settings:
    try:
        settings = Settings.from_dict(info["settings"])
    except UserError as error:
        raise UserError(f"{output / 'run.yaml'}: {error}") from error
    source = {"from": info["from"]["path"]} if "from" in info else {}
    for name, value in expected.items():
        before = {**info, **source, **info["options"], **info["settings"], **info["settings"]["training"]}.get(name)
        if value != before:
            raise UserError(f"got {name} {value!r}, but {output} was started with {before!r}; leave it out to resume")
    return settings


def _read_source(info: Mapping[str, Any], output: Path, task: Task[Any, Any]) -> Source | None:
    """What a run without a checkpoint starts from."""
    if "from" not in info:
        return None
    try:
        return Source.reopen(info["from"], type(task))
    except UserError as error:
        raise UserError(f"{output} has no checkpoint yet, and cannot start from where it did: {error}") from error


def _refuse_complete(checkpoint: Checkpoint | None, training: TrainingArguments) -> None:
    if checkpoint is None or not checkpoint.is_complete(training) or checkpoint.lacks_validation(training):
        return
    minutes = checkpoint.progress.seconds / 60
    raise UserError(
        f"the run is complete, with {checkpoint.step} steps in {minutes:.1f} minutes; give more --steps or --minutes "
        "to go on"
    )


def _train(
    task: Task[Any, Any],
    run: RunFolder,
    settings: Settings,
    materials: Materials,
    checkpoint: Checkpoint | None,
    device: torch.device,
    report: Report,
    watch: Watch | None,
) -> Outcome:
    request, training = StopRequest(), settings.training
    trainer = SynthesizerTrainer(
        materials.model,
        task=task,
        settings=settings,
        run=run,
        tokenizer=materials.tokenizer,
        train=materials.train,
        validation=materials.validation,
        device=device,
        start=checkpoint,
        stopped=lambda: request.received is not None,
    )
    validated = trainer.progress.last.get("step", 0)
    trainer.add_callback(StopWhenDue(trainer.clock, training.minutes, request))
    trainer.add_callback(LogFile(run.log, lambda text: run.write_text(run.log.name, text), validated))
    less_memory = (
        f"a new run needs less with lower --set batch_tokens=… (now {training.batch_tokens}), or, if it was while "
        f"validating, eval_batch_tokens=… (now {training.eval_batch_tokens})"
    )
    with ExitStack() as around:
        around.enter_context(shortage_reported(less_memory, lambda: _what_is_left(run)))
        around.enter_context(request.listening())
        if watch is not None:
            trainer.add_callback(around.enter_context(watch(trainer.clock, training)))
        trainer.run_training()
        # A run that was stopped before its first validation still gives a model to look at.
        if trainer.args.should_save and not trainer.progress.best:
            run.save_model(materials.model)
        metrics = trainer.write_metrics()
    return Outcome(metrics, None if metrics["finished"] else request.received, request.received)


def _what_is_left(run: RunFolder) -> str:
    last = run.last_checkpoint()
    return "no checkpoint was saved yet" if last is None else f"{last.path.name} is left, --resume goes on from it"


def _versions(task: Task[Any, Any], device: torch.device) -> dict[str, str | int]:
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in (*_PACKAGES, *task.packages)},
        "device": describe_device(device),
        "threads": torch.get_num_threads(),
    }


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
