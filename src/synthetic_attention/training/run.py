"""Start a run, or resume one. Everything is checked before anything is written."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from transformers import PreTrainedTokenizerFast, TrainerCallback, set_seed

from ..data.hub import is_hub_name
from ..errors import UserError
from ..tasks.base import Split, Task, build_model
from .checkpoint import last_checkpoint
from .device import choose_training_device, describe_device, entered_by_main_process
from .failures import one_line, shortage_reported
from .run_folder import PretrainedRun, RunFolder, data_path, portable_path
from .settings import Settings, build_config
from .trainer import SynthesizerTrainer, TrainingInputs

# Receives lines for the user.
Report = Callable[[str], object]
_PACKAGES = ("synthetic-attention", "torch", "transformers", "accelerate", "tokenizers")


class Outcome(NamedTuple):
    """The content of metrics.json, and the signal that asked to stop, if one did; the run may have ended before."""

    metrics: dict[str, Any]
    signal: int | None


def read_splits(task: Task[Any, Any], data: Path) -> dict[str, Split]:
    """The splits that training needs: "train" and "valid"."""
    return {name: task.read(data, name) for name in ("train", "valid")}


def start_run(
    *,
    task: Task[Any, Any],
    data: Path,
    settings: Settings,
    output: Path,
    pretrained: PretrainedRun | None = None,
    overwrite: bool = False,
    device: str | None = None,
    report: Report = print,
    callbacks: Sequence[TrainerCallback] = (),
) -> Outcome:
    """Train a model on `data` into the folder `output`.

    Under torchrun every process calls this; only the main process writes. With `pretrained`, the run to start from,
    `settings` have its model. `callbacks` are further ones of Trainer, such as `ProgressReport`.

    Raises:
        UserError: the data or the output cannot be used. Nothing was written then.
    """
    place = choose_training_device(device)
    # Resolved, because a link or the current directory cannot be replaced.
    run = RunFolder(output.resolve())
    run.check_new(overwrite)
    with entered_by_main_process(run.locked if run.exists else nullcontext):
        # Refused now, and not after the data was read: another process trains the run that would be replaced.
        pass
    if not is_hub_name(data) and data.resolve().is_relative_to(run.path):
        raise UserError(f"{data}: the data is inside {output}, which would be replaced; choose another --output")
    if pretrained is not None and pretrained.run.path.is_relative_to(run.path):
        raise UserError(f"{pretrained.run.path}: the run to start from would be replaced; choose another --output")
    task.check_requirements()
    splits = read_splits(task, data)
    inputs = prepare_inputs(task, splits, settings, report, pretrained=pretrained)
    info = {
        "task": task.name,
        "options": asdict(task),
        "data": portable_path(data),
        "commands": [_command()],
        **({} if pretrained is None else {"from": pretrained.record()}),
        "settings": settings.to_dict(),
        "fingerprints": {name: split.fingerprint() for name, split in splits.items()},
        "versions": _versions(task, place),
    }
    with (
        _shortage_reported(run, settings),
        entered_by_main_process(lambda: run.created(info, inputs.tokenizer, overwrite)),
    ):
        return _train(SynthesizerTrainer(inputs, run, place), callbacks)


def resume_run(
    output: Path,
    *,
    expected: Mapping[str, Any] | None = None,
    data: Path | None = None,
    max_steps: int | None = None,
    minutes: float | None = None,
    device: str | None = None,
    report: Report = print,
    callbacks: Sequence[TrainerCallback] = (),
) -> Outcome:
    """Continue the run at `output` from its last checkpoint. The result is the same as without the interruption.

    Args:
        expected: settings, by their names in run.yaml, that the run must have; "from" is the path of the run
            that it started from.
        data: the data, if it was moved.
        max_steps, minutes: a new end of training.
        device: another device has other rounding errors.

    Raises:
        UserError: the run does not exist or is damaged, has other settings or data, is complete, or another process is
            training it.
    """
    place = choose_training_device(device)
    run = RunFolder(output.resolve())
    info = run.read_info()
    with entered_by_main_process(run.locked):
        settings = run.read_settings(info)
        source = {"from": info["from"]["path"]} if "from" in info else {}
        found = {**info, **source, **info["options"], **info["settings"], **info["settings"]["training"]}
        for name, value in (expected or {}).items():
            if value != (was := found.get(name)):
                raise UserError(f"got {name} {value!r}, but {output} was started with {was!r}; leave it out to resume")
        settings = settings.with_budget(max_steps, minutes)
        task = run.read_task(info)
        task.check_requirements()
        path = data_path(info, data)
        splits = read_splits(task, path)
        for name, split in splits.items():
            if split.fingerprint() != info["fingerprints"].get(name):
                raise UserError(f"{path}: the {name} data is not the data that {output} was started with")
        tokenizer = run.load_tokenizer()
        checkpoint, training = last_checkpoint(run.checkpoints), settings.training
        if checkpoint and checkpoint.is_complete(training) and not checkpoint.lacks_validation(training):
            raise UserError(f"the run is complete, with {checkpoint.step} steps; give more --steps or --minutes")
        reopen = checkpoint is None and "from" in info
        pretrained = PretrainedRun.reopen(info["from"], type(task)) if reopen else None
        inputs = prepare_inputs(task, splits, settings, report, tokenizer, pretrained)
        info.update(
            data=portable_path(path),
            settings=settings.to_dict(),
            commands=[*info["commands"], _command()],
            resumed_with=[*info.get("resumed_with", []), _versions(task, place)],
        )
        report(f"resuming {output} from {checkpoint.path.name if checkpoint else 'the start: it has no checkpoint'}")
        with _shortage_reported(run, settings):
            if PartialState().is_main_process:
                run.remove_partial()
                run.write_yaml("run.yaml", info)
            return _train(SynthesizerTrainer(inputs, run, place, checkpoint), callbacks)


def prepare_inputs(
    task: Task[Any, Any],
    splits: Mapping[str, Split],
    settings: Settings,
    report: Report,
    tokenizer: PreTrainedTokenizerFast | None = None,
    pretrained: PretrainedRun | None = None,
) -> TrainingInputs:
    """Encode the splits and build the model; the seed determines new weights.

    The tokenizer is by default that of `pretrained`, or a new one from the training split.
    """
    (train, valid), config = (splits["train"], splits["valid"]), build_config(settings)
    maximum = config.max_position_embeddings
    if pretrained is not None:
        parts = "architecture and tokenizer" if pretrained.scratch else "weights and tokenizer"
        unfinished = "" if pretrained.finished else ", not trained to its end"
        report(f"{parts} of {pretrained.run.path} ({pretrained.task.name}{unfinished})")
        tokenizer = tokenizer or task.adapt_tokenizer(pretrained.run.load_tokenizer())
    if tokenizer is None:
        tokenizer = task.train_tokenizer(train, config.vocab_size, maximum)
    encoded = []
    for split in (train, valid):
        examples = task.encode(split, tokenizer, maximum, settings.training.on_long, training=split is train)
        report(f"{split.name}: {len(examples):,} {task.unit}, {int(examples.lengths().sum()):,} tokens")
        if examples.note:
            report(f"{split.name}: {examples.note}")
        if examples.skipped:
            report(f"{split.name}: {examples.skipped} malformed lines left out")
        if examples.dropped:
            report(f"{split.name}: {examples.dropped} {task.unit} dropped (over {maximum} tokens, or blank)")
        if examples.truncated:
            report(f"{split.name}: {examples.truncated} {task.unit} truncated to {maximum} tokens")
        encoded.append(examples)
    config = build_config(settings, **task.config_changes(train, tokenizer))
    set_seed(settings.training.seed)
    try:
        model = build_model(task, config)
    # PyTorch raises a RuntimeError for a size that it cannot allocate.
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise UserError(f"the model cannot be built: {one_line(error)}") from error
    if pretrained is not None and not pretrained.scratch:
        # Dropout does not depend on whether the weights are new.
        with torch.random.fork_rng(devices=[]):
            note = pretrained.load_into(model)
        if note:
            report(note)
    report(f"{model.num_parameters(only_trainable=True):,} parameters, vocabulary of {len(tokenizer):,} tokens")
    return TrainingInputs(task, settings, model, tokenizer, encoded[0], encoded[1], valid)


def _shortage_reported(run: RunFolder, settings: Settings) -> AbstractContextManager[None]:
    def describe_checkpoint() -> str:
        last = last_checkpoint(run.checkpoints)
        return "no checkpoint was saved yet" if last is None else f"--resume continues from {last.path.name}"

    sizes = (f"{name} (now {getattr(settings.training, name)})" for name in ("batch_tokens", "eval_batch_tokens"))
    return shortage_reported(f"lower {' or, for validation, '.join(sizes)}", describe_checkpoint)


def _train(trainer: SynthesizerTrainer, callbacks: Sequence[TrainerCallback]) -> Outcome:
    for callback in callbacks:
        trainer.add_callback(callback)
    with trainer.stop_request.listening():
        try:
            trainer.run_training()
        finally:
            # Also after an error, so that its message does not follow a progress bar.
            for callback in callbacks:
                callback.on_train_end(trainer.args, trainer.state, trainer.control)
        # A run that was stopped before its first validation also gets a model.
        if trainer.args.should_save and not trainer.progress.best:
            trainer.run.save_model(trainer.inputs.model)
        return Outcome(trainer.write_metrics(), trainer.stop_request.received)


def _versions(task: Task[Any, Any], device: torch.device) -> dict[str, str | int]:
    versions = {"python": platform.python_version(), "device": describe_device(device)}
    for package in (*_PACKAGES, *task.packages):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {**versions, "threads": torch.get_num_threads()}


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
