"""Start a run, resume one, or measure its first steps. Everything is checked before anything is written."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import resource
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import PreTrainedTokenizerFast, TrainerCallback, TrainerControl, TrainerState, set_seed

from synthetic_attention import __version__

from ..data.examples import Examples
from ..data.source import Records, Split, is_hub_name
from ..errors import UserError, damage_reported
from ..tasks.base import Task, build_model, tokens_name
from ..tasks.large import IN_MEMORY, Report, encode_large, new_tokenizer
from .checkpoint import last_progress, remove_others
from .device import (
    any_process,
    check_agreement,
    choose_training_device,
    describe_device,
    failing_together,
    gather,
    shortage_reported,
)
from .options import Sharding, TrainingOptions
from .run_folder import PretrainedRun, RunFolder, data_path, portable_path
from .settings import Settings, build_config
from .sharding import building_device, check_launch
from .trainer import SynthesizerTrainer, TrainingInputs

# The first steps allocate and compile; then steps are measured until one of the limits.
_WARMUP, _STEPS, _SECONDS = 3, 50, 10.0
_NEVER = 10**9
# Those that scores depend on are recorded where they are installed.
_PACKAGES = (
    *("torch", "transformers", "accelerate", "tokenizers"),
    *("sacrebleu", "rouge-score", "sentencex", "pycocoevalcap", "scikit-learn", "scipy"),
)


class RunCompleteError(UserError):
    """The run to resume is complete."""


class Outcome(NamedTuple):
    """The content of metrics.json, and the signal that asked to stop, if one did; the run may have ended before."""

    metrics: dict[str, Any]
    signal: int | None


def read_splits(task: Task, data: Path, training: TrainingOptions) -> dict[str, Any]:
    """The splits that training needs: "train", whose records are not read yet if it is large, and "valid"."""
    records = task.records(data, "train")
    is_large = records.source.bytes() > min(IN_MEMORY, training.tokenizer_characters)
    train = replace(records, task=(task.name, asdict(task), *records.task)) if is_large else records.load()
    return {"train": train, "valid": task.records(data, "valid").load()}


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
    place = choose_training_device(device)
    settings = settings.with_batches_per_update(batches_per_update, PartialState().num_processes)
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
        "commands": [command_line()],
        **({} if pretrained is None else {"from": pretrained.record()}),
        "settings": settings.to_dict(),
        "processes": PartialState().num_processes,
        "fingerprints": inputs.fingerprints,
        "versions": _versions(place),
    }
    check_agreement({**vars(settings), **vars(settings.training), "training": None, "data": info["fingerprints"]})
    with _shortage_reported(run, settings.training), ExitStack() as held:
        with failing_together():
            if PartialState().is_main_process:
                held.enter_context(run.locked())
                with run.written(overwrite) as new:
                    new.write_yaml("run.yaml", info)
                    inputs.tokenizer.save_pretrained(new.path)
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
    place = choose_training_device(device)
    run = RunFolder(output.resolve())
    info = run.read_info()
    if "converted_from" in info:
        raise UserError(f"{output}: a converted model, not an interrupted run; start from it with --from {output}")
    run.check_options(info)
    with ExitStack() as held:
        with failing_together():
            if PartialState().is_main_process:
                held.enter_context(run.locked())
                remove_others(run.checkpoints)
            task, settings = run.read_task(info), run.read_settings(info).with_budget(max_steps, minutes)
            _check_expected(info, expected or {}, output)
            accumulation = settings.training.gradient_accumulation_steps
            batches = batches_per_update or info.get("processes", 1) * accumulation
            settings = settings if sharding is None else settings.with_training(sharding=sharding)
            start = last_progress(run.checkpoints)
            if start.step and settings.training.is_complete(start.step, start.seconds):
                raise RunCompleteError(f"the run is complete, with {start.step} steps; give more --steps or --minutes")
            settings = settings.with_batches_per_update(batches, PartialState().num_processes)
            training, path, tokenizer = settings.training, data_path(info, data), run.load_tokenizer()
            reopen = not start.step and "from" in info
            pretrained = PretrainedRun.reopen(info["from"], type(task)) if reopen else None
        inputs = prepare_inputs(task, path, settings, report, tokenizer, pretrained, info["fingerprints"])
        check_agreement({**vars(training), "their checkpoint": start.step})
        place_in_run = f"checkpoint-{start.step}" if start.step else "the start: it has no checkpoint"
        report(f"resuming {output} from {place_in_run}")
        if training.gradient_accumulation_steps != accumulation:
            changed = f"gradient_accumulation_steps={training.gradient_accumulation_steps}"
            report(f"{batches} batches per update: {changed}")
        info.update(
            data=portable_path(path),
            settings=settings.to_dict(),
            processes=PartialState().num_processes,
            commands=[*info["commands"], command_line()],
            resumed_with=[*info.get("resumed_with", []), _versions(place)],
        )
        with _shortage_reported(run, training):
            if PartialState().is_main_process:
                run.write_yaml("run.yaml", info)
            return _train(SynthesizerTrainer(inputs, run, place, start), callbacks)


def dry_run(
    task: Task,
    data: Path,
    settings: Settings,
    *,
    pretrained: PretrainedRun | None = None,
    batches_per_update: int | None = None,
    device: str | None = None,
    report: Report = print,
) -> str:
    """Read the data, build tokenizer and model, and train a few steps; the arguments are those of `start_run`.

    The result is a table of two columns: parameters, tokens, speed and memory of the measured steps, and the estimates
    for the whole training without validation.
    """
    place = choose_training_device(device)
    settings = settings.with_batches_per_update(batches_per_update, PartialState().num_processes)
    inputs, training = prepare_inputs(task, data, settings, report, pretrained=pretrained), settings.training
    # One step more than are measured: the last one would save and validate.
    few: dict[str, Any] = {"max_steps": _WARMUP + _STEPS + 1, "eval_steps": _NEVER, "logging_steps": _NEVER}
    short = settings.with_training(minutes=None, report_to="none", **few)
    # Trainer needs a folder.
    with tempfile.TemporaryDirectory() as folder:
        trainer = SynthesizerTrainer(replace(inputs, settings=short), RunFolder(Path(folder)), place)
        stopwatch = _Stopwatch(trainer)
        trainer.add_callback(stopwatch)
        with shortage_reported(f"lower batch_tokens (now {training.batch_tokens})", lambda: "nothing was written"):
            trainer.run_training()
    (start, before), (end, after) = stopwatch.seen[0], stopwatch.seen[-1]
    measured, tokens, unit = len(stopwatch.seen) - 1, inputs.train.tokens_per_pass(), tokens_name(task)
    speed, per_step = (after - before) / (end - start), (after - before) / measured
    by_time = math.inf if training.minutes is None else 60 * training.minutes * speed / per_step
    steps = round(min(by_time, training.max_steps if training.max_steps > 0 else math.inf))
    if place.type == "cuda":
        peak = torch.cuda.max_memory_reserved(place)
    else:
        # Of the whole process; Linux counts in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    rows = {
        "parameters": f"{inputs.model.num_parameters(only_trainable=True):,}",
        "an epoch": f"{len(inputs.train):,} {task.unit}, {tokens:,.0f} {unit}",
        "training": f"{steps:,} steps of {per_step:,.0f} tokens, {steps * per_step / tokens:.1f} epochs",
        "device": f"{describe_device(place)}, {'bfloat16' if training.bf16 else 'float32'}",
        "speed": f"{speed:,.0f} {unit}/s over {measured} steps",
        "memory": f"{peak / 1e6:,.0f} MB at most in these steps, everything included",
        "time": f"{tqdm.format_interval(steps * per_step / speed)}, without validation",
    }
    return "\n".join(f"{name:<10}  {text}" for name, text in rows.items())


class _Stopwatch(TrainerCallback):
    """Notes time and tokens after each step, and stops training after enough of them."""

    def __init__(self, trainer: SynthesizerTrainer) -> None:
        self.trainer = trainer
        self.seen: list[tuple[float, int]] = []

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step >= _WARMUP:
            # Counting waits for the device, so the time is that of finished work.
            tokens = self.trainer.count_tokens()
            self.seen.append((self.trainer.clock.seconds, tokens))
            enough = len(self.seen) > 1 and self.seen[-1][0] - self.seen[0][0] >= _SECONDS
            # Processes must stop at the same step, but their clocks differ.
            control.should_training_stop = any_process(enough or len(self.seen) > _STEPS)


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
    check_launch(settings.training)
    settings.training.check_loggers()
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
        tokenizer = new_tokenizer(task, train, vocab_size, maximum, settings.training.tokenizer_characters, report)

    def encode(split: Split) -> Examples:
        examples = task.encode(split, tokenizer, maximum, on_long, training=split is train)
        report(f"{split.name}: {len(examples):,} {task.unit}, {int(examples.lengths().sum()):,} tokens")
        return examples

    if isinstance(train, Records):
        examples, head = encode_large(task, train, tokenizer, maximum, on_long, report), train.head()
    else:
        examples, head = encode(train), train
    validation = encode(valid)
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
        step = last_progress(run.checkpoints).step
        return f"--resume continues from checkpoint-{step}" if step else "no checkpoint was saved yet"

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
    return {**versions, "synthetic-attention": __version__, "threads": torch.get_num_threads()}


def command_line() -> str:
    """The command that runs, as a shell takes it."""
    program = Path(sys.argv[0])
    is_script = program.suffix == ".py" and program.name != "__main__.py"
    return shlex.join([*(("python", str(program)) if is_script else ("synthesizer",)), *sys.argv[1:]])
