"""Start a run, or resume one. Everything is checked before anything is written."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from transformers import PreTrainedTokenizerFast, TrainerCallback, set_seed

from ..data.examples import Examples, LongTextError
from ..data.source import Split, is_hub_name
from ..errors import UserError, damage_reported
from ..tasks.base import Task, build_model
from ..tasks.large import IN_MEMORY, LargeSplit, encode_large, new_tokenizer
from .checkpoint import last_checkpoint, remove_others
from .device import (
    check_agreement,
    choose_training_device,
    describe_device,
    entered_by_main_process,
    failing_together,
    gather,
    shortage_reported,
)
from .options import Sharding, TrainingOptions
from .run_folder import PretrainedRun, RunFolder, data_path, portable_path
from .settings import Settings, build_config
from .sharding import building_device, check_launch
from .trainer import SynthesizerTrainer, TrainingInputs

# Receives lines for the user.
Report = Callable[[str], object]
# Those that scores depend on are recorded where they are installed.
_PACKAGES = (
    *("synthetic-attention", "torch", "transformers", "accelerate", "tokenizers"),
    *("sacrebleu", "rouge-score", "sentencex", "pycocoevalcap", "scikit-learn", "scipy"),
)


class RunCompleteError(UserError):
    """The run to resume is complete."""


class Outcome(NamedTuple):
    """The content of metrics.json, and the signal that asked to stop, if one did; the run may have ended before."""

    metrics: dict[str, Any]
    signal: int | None


def read_splits(task: Task, data: Path, training: TrainingOptions) -> dict[str, Split]:
    """The splits that training needs: "train", in parts if it is large, and "valid"."""
    records, limit = task.records(data, "train"), training.tokenizer_characters
    is_large = records.source.bytes() > min(IN_MEMORY, limit)
    train = LargeSplit(records.split([]).name, task, records, limit) if is_large else records.load()
    return {"train": train, "valid": task.read(data, "valid")}


def join_processes(
    settings: Settings, batches_per_update: int | None, device: str | None
) -> tuple[torch.device, Settings]:
    """The device of this process, and the settings with the gradient accumulation for all processes."""
    place = choose_training_device(device)
    if batches_per_update is not None:
        settings = settings.with_batches_per_update(batches_per_update, PartialState().num_processes)
    check_launch(settings.training)
    return place, settings


def start_run(
    *,
    task: Task,
    data: Path,
    settings: Settings,
    output: Path,
    pretrained: PretrainedRun | None = None,
    overwrite: bool = False,
    batches_per_update: int | None = None,
    device: str | None = None,
    report: Report = print,
    callbacks: Sequence[TrainerCallback] = (),
) -> Outcome:
    """Train a model on `data` into the folder `output`.

    Under torchrun every process calls this; only the main process writes. With `pretrained`, the run to start from,
    `settings` have its model. `batches_per_update`, of all processes together, sets the gradient accumulation.
    `callbacks` are further ones of Trainer, such as `ProgressReport`.

    Raises:
        UserError: the data or the output cannot be used. Nothing was written then.
    """
    place, settings = join_processes(settings, batches_per_update, device)
    # Resolved, because a link or the current directory cannot be replaced.
    run = RunFolder(output.resolve())
    run.check_new(overwrite)
    if not is_hub_name(data) and data.resolve().is_relative_to(run.path):
        raise UserError(f"{data}: the data is inside {output}, which would be replaced; choose another --output")
    if pretrained is not None and pretrained.run.path.is_relative_to(run.path):
        raise UserError(f"{pretrained.run.path}: the run to start from would be replaced; choose another --output")
    inputs = prepare_inputs(task, data, settings, report, pretrained=pretrained)
    info = {
        "task": task.name,
        "options": asdict(task),
        "data": portable_path(data),
        "commands": [_command()],
        **({} if pretrained is None else {"from": pretrained.record()}),
        "settings": settings.to_dict(),
        "processes": PartialState().num_processes,
        "fingerprints": inputs.fingerprints,
        "versions": _versions(place),
    }
    check_agreement({**vars(settings), **settings.training.to_dict(), "training": None, "data": info["fingerprints"]})
    with (
        _shortage_reported(run, settings.training),
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
    batches_per_update: int | None = None,
    sharding: Sharding | None = None,
    device: str | None = None,
    report: Report = print,
    callbacks: Sequence[TrainerCallback] = (),
) -> Outcome:
    """Continue the run at `output` from its last checkpoint. The result is the same as without the interruption.

    An update keeps its batches with another number of processes: the gradient accumulation changes.

    Args:
        expected: settings, by their names in run.yaml, that the run must have; "from" is the path of the run
            that it started from.
        data: the data, if it was moved.
        max_steps, minutes: a new end of training.
        batches_per_update: another number of batches, of all processes together.
        sharding: another sharding has other rounding errors.
        device: another device has other rounding errors.

    Raises:
        UserError: the run does not exist or is damaged, has other settings or data, is complete, another process is
            training it, or the processes cannot share the batches of an update.
    """
    # The processes join before one of them removes and locks.
    choose_training_device(device)
    run = RunFolder(output.resolve())
    info = run.read_info()
    if "converted_from" in info:
        raise UserError(f"{output}: a converted model, not an interrupted run; start from it with --from {output}")
    run.check_options(info)
    with entered_by_main_process(run.locked):
        with failing_together():
            if PartialState().is_main_process:
                remove_others(run.checkpoints)
            task, settings = run.read_task(info), run.read_settings(info).with_budget(max_steps, minutes)
            _check_expected(info, expected or {}, output)
            accumulation = settings.training.gradient_accumulation_steps
            batches = batches_per_update or info.get("processes", 1) * accumulation
            settings = settings if sharding is None else settings.with_training(sharding=sharding)
            checkpoint = last_checkpoint(run.checkpoints)
            if checkpoint and settings.training.is_complete(checkpoint.step, checkpoint.progress.seconds):
                raise RunCompleteError(
                    f"the run is complete, with {checkpoint.step} steps; give more --steps or --minutes"
                )
            place, settings = join_processes(settings, batches, device)
            training, path, tokenizer = settings.training, data_path(info, data), run.load_tokenizer()
            reopen = checkpoint is None and "from" in info
            pretrained = PretrainedRun.reopen(info["from"], type(task)) if reopen else None
        inputs = prepare_inputs(task, path, settings, report, tokenizer, pretrained, info["fingerprints"])
        check_agreement({**training.to_dict(), "their checkpoint": checkpoint and checkpoint.step})
        report(f"resuming {output} from {checkpoint.path.name if checkpoint else 'the start: it has no checkpoint'}")
        if training.gradient_accumulation_steps != accumulation:
            changed = f"gradient_accumulation_steps={training.gradient_accumulation_steps}"
            report(f"{batches} batches per update: {changed}")
        info.update(
            data=portable_path(path),
            settings=settings.to_dict(),
            processes=PartialState().num_processes,
            commands=[*info["commands"], _command()],
            resumed_with=[*info.get("resumed_with", []), _versions(place)],
        )
        with _shortage_reported(run, training):
            if PartialState().is_main_process:
                run.write_yaml("run.yaml", info)
            return _train(SynthesizerTrainer(inputs, run, place, checkpoint), callbacks)


def _check_expected(info: Mapping[str, Any], expected: Mapping[str, Any], output: Path) -> None:
    """Raise UserError if the run was started with other settings than `expected`."""
    source = {"from": info["from"]["path"]} if "from" in info else {}
    found = {**info, **source, **info["options"], **info["settings"], **info["settings"]["training"]}
    for name, value in expected.items():
        if value != (was := found.get(name)):
            if name == "overrides":
                name, value, was = "--set", shlex.join(value), shlex.join(was or [])
            was = "none" if was in (None, "") else was
            raise UserError(f"got {name} {value}, but {output} was started with {was}; leave it out to resume")


@failing_together()
def prepare_inputs(
    task: Task,
    data: Path,
    settings: Settings,
    report: Report,
    tokenizer: PreTrainedTokenizerFast | None = None,
    pretrained: PretrainedRun | None = None,
    fingerprints: Mapping[str, Any] | None = None,
) -> TrainingInputs:
    """Read and encode the data, and build the model; the seed determines new weights.

    The tokenizer is by default that of `pretrained`, or a new one from the training split. The data must have the
    `fingerprints`, if they are given.
    """
    task.check_requirements()
    splits = read_splits(task, data, settings.training)
    found = {name: split.fingerprint() for name, split in splits.items()}
    for name, digests in found.items():
        if fingerprints is not None and digests != fingerprints.get(name):
            raise UserError(f"{data}: the {name} data is not the data that the run was started with")
    train, valid, on_long = splits["train"], splits["valid"], settings.training.on_long
    vocab_size, maximum = (settings.model[name] for name in ("vocab_size", "max_position_embeddings"))
    if pretrained is not None:
        parts = "architecture and tokenizer" if pretrained.scratch else "weights and tokenizer"
        unfinished = "" if pretrained.finished else ", not trained to its end"
        report(f"{parts} of {pretrained.run.path} ({pretrained.task.name}{unfinished})")
        tokenizer = tokenizer or task.adapt_tokenizer(pretrained.run.load_tokenizer())
    if tokenizer is None:
        tokenizer = new_tokenizer(task, train, vocab_size, maximum, report)

    def encode(split: Split) -> Examples:
        examples = task.encode(split, tokenizer, maximum, on_long, training=split is train)
        report(f"{split.name}: {len(examples):,} {task.unit}, {int(examples.lengths().sum()):,} tokens")
        return examples

    try:
        if isinstance(train, LargeSplit):
            examples, head = encode_large(train, tokenizer, maximum, on_long, report), train.head()
        else:
            examples, head = encode(train), train
        validation = encode(valid)
    except LongTextError as error:
        raise UserError(f"{error}, or --on-long drop") from None
    for split, encoded in ((train, examples), (valid, validation)):
        _report_left_out(split.name, encoded, task.unit, maximum, report)
    config = build_config(settings, **task.config_changes(head, tokenizer))
    set_seed(settings.training.seed)
    with damage_reported("the model", "built"), building_device(settings.training.sharding):
        model = build_model(task, config)
    if pretrained is not None and not pretrained.scratch and model.device.type != "meta":
        # Dropout does not depend on whether the weights are new.
        with torch.random.fork_rng(devices=[]):
            note = pretrained.load_into(model)
        if note:
            report(note)
    report(f"{model.num_parameters(only_trainable=True):,} parameters, vocabulary of {len(tokenizer):,} tokens")
    steps, warmup = settings.training.max_steps, settings.training.warmup_steps
    if 0 < steps < warmup:
        report(f"{steps} steps are fewer than warmup_steps, {warmup}; pass --set warmup_steps={steps // 10}")
    return TrainingInputs(task, settings, model, tokenizer, examples, validation, valid, found)


def _report_left_out(name: str, examples: Examples, unit: str, maximum: int, report: Report) -> None:
    """Report the examples of a split that are left out or truncated."""
    if examples.note:
        report(f"{name}: {examples.note}")
    if examples.skipped:
        report(f"{name}: {examples.skipped} malformed lines left out")
    if examples.dropped:
        report(f"{name}: {examples.dropped} {unit} dropped (over {maximum} tokens, or blank)")
    if examples.truncated:
        report(f"{name}: {examples.truncated} {unit} truncated to {maximum} tokens")


def _shortage_reported(run: RunFolder, training: TrainingOptions) -> AbstractContextManager[None]:
    def describe_checkpoint() -> str:
        last = last_checkpoint(run.checkpoints)
        return "no checkpoint was saved yet" if last is None else f"--resume continues from {last.path.name}"

    sizes = (f"{name} (now {getattr(training, name)})" for name in ("batch_tokens", "eval_batch_tokens"))
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
        if not trainer.progress.best:
            trainer.save_best_model()
        # A signal may reach one process only; it stops all.
        received = [signal for signal in gather(trainer.stop_request.received) if signal is not None]
        return Outcome(trainer.write_metrics(), received[0] if received else None)


def _versions(device: torch.device) -> dict[str, str | int]:
    versions = {"python": platform.python_version(), "device": describe_device(device)}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {**versions, "threads": torch.get_num_threads()}


def _command() -> str:
    program = Path(sys.argv[0])
    is_script = program.suffix == ".py" and program.name != "__main__.py"
    return shlex.join([*(("python", str(program)) if is_script else ("synthesizer",)), *sys.argv[1:]])
