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
from transformers import PreTrainedTokenizerFast, TrainerCallback, set_seed

from ..models import SynthesizerForConditionalGeneration
from ..tasks import UserError, get_task
from ..tasks.examples import Examples
from ..tasks.translation import ParallelText, Translation
from .callbacks import LogFile, StopRequest, StopWhenDue
from .checkpoint import Checkpoint
from .clock import TrainingClock
from .failures import one_line, shortage_reported
from .run_folder import RunFolder, data_folder
from .settings import Settings, TrainingArguments, build_config
from .trainer import SynthesizerTrainer, Validation

__all__ = ["Outcome", "resume_run", "start_run"]

Report = Callable[[str], object]
Watch = Callable[[TrainingClock, TrainingArguments], AbstractContextManager[TrainerCallback]]
_PACKAGES = ("synthetic-attention", "torch", "transformers", "accelerate", "tokenizers", "sacrebleu")


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its metrics, and the signal that stopped it before its end, if one did."""

    metrics: dict[str, Any]
    signal: int | None


@dataclass(frozen=True)
class _Data:
    train: ParallelText
    valid: ParallelText

    @classmethod
    def read(cls, task: Translation, folder: Path) -> _Data:
        return cls(task.read(folder, "train"), task.read(folder, "valid"))

    def fingerprints(self) -> dict[str, Any]:
        return {"train": self.train.fingerprint(), "valid": self.valid.fingerprint()}


def start_run(
    *,
    task: Translation,
    data: Path,
    settings: Settings,
    output: Path,
    overwrite: bool = False,
    report: Report = print,
    watch: Watch | None = None,
) -> Outcome:
    """Train a new model on `data` into the folder `output`.

    Args:
        overwrite: replace the run that is at `output`.
        report: gets a line for what a user should know.
        watch: makes the callback that shows progress; it is entered around training.

    Raises:
        UserError: the data or the output cannot be used. Nothing has been written then.
    """
    # Resolved: a folder that is a link, or the one that we are in, can then be replaced like any other.
    run = RunFolder(output.resolve())
    run.check_new(overwrite)
    if data.resolve().is_relative_to(run.path):
        raise UserError(f"{data}: the data is inside {output}, which would be replaced; choose another --output")
    task.scorers()
    texts = _Data.read(task, data)
    config = build_config(settings)
    tokenizer = task.tokenizer(texts.train, config.vocab_size, config.max_position_embeddings)
    train, validation = _prepare(task, texts, tokenizer, settings, report)
    model = _build_model(settings, tokenizer, report)
    run.create(_info(task, data, settings, texts), tokenizer, overwrite)
    return _train(task, run, settings, model, tokenizer, train, validation, None, report, watch)


def resume_run(
    output: Path,
    *,
    expected: Mapping[str, Any] | None = None,
    data: Path | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    report: Report = print,
    watch: Watch | None = None,
) -> Outcome:
    """Continue the run at `output` from its last checkpoint, as if it had never stopped.

    Args:
        expected: settings, by their names in run.yaml, that must be those of the run.
        data: where the data is now, if not where it was.
        steps, minutes: another end.

    Raises:
        UserError: there is no run or it is damaged, its settings or data are others, or it is complete already.
    """
    run = RunFolder(output.resolve())
    info = run.read_info()
    settings = _read_settings(info, output, expected or {}).with_budget(steps, minutes)
    task = get_task(info["task"])(info["source"], info["target"])
    task.scorers()
    folder = data_folder(info, data)
    texts = _Data.read(task, folder)
    for split, found in texts.fingerprints().items():
        if found != info["fingerprints"][split]:
            raise UserError(f"{folder}: the {split} data is not what {output} was started with")
    tokenizer = run.load_tokenizer()
    train, validation = _prepare(task, texts, tokenizer, settings, report)
    checkpoint = run.last_checkpoint()
    _refuse_complete(checkpoint, settings.training)
    model = _build_model(settings, tokenizer, report)
    run.remove_partial()
    info.update(
        data=str(folder.resolve()),
        settings=settings.to_dict(),
        commands=[*info["commands"], _command()],
        resumed_with=[*info.get("resumed_with", []), _versions()],
    )
    run.write_info(info)
    report(f"resuming {output} from {checkpoint.path.name if checkpoint else 'the start: it has no checkpoint yet'}")
    return _train(task, run, settings, model, tokenizer, train, validation, checkpoint, report, watch)


def _read_settings(info: Mapping[str, Any], output: Path, expected: Mapping[str, Any]) -> Settings:
    try:
        settings = Settings.from_dict(info["settings"])
    except UserError as error:
        raise UserError(f"{output / 'run.yaml'}: {error}") from error
    for name, value in expected.items():
        before = {**info, **info["settings"], **info["settings"]["training"]}.get(name)
        if value != before:
            raise UserError(f"got {name} {value!r}, but {output} was started with {before!r}; leave it out to resume")
    return settings


def _refuse_complete(checkpoint: Checkpoint | None, training: TrainingArguments) -> None:
    if checkpoint is None or not checkpoint.is_complete(training) or checkpoint.lacks_validation(training):
        return
    minutes = checkpoint.progress.seconds / 60
    raise UserError(
        f"the run is complete, with {checkpoint.step} steps in {minutes:.1f} minutes; give more --steps or --minutes "
        "to go on"
    )


def _prepare(
    task: Translation, texts: _Data, tokenizer: PreTrainedTokenizerFast, settings: Settings, report: Report
) -> tuple[Examples, Validation]:
    maximum, long = build_config(settings).max_position_embeddings, settings.training.long_sentences
    splits = []
    for text in (texts.train, texts.valid):
        examples = task.examples(text, tokenizer, maximum, long)
        report(f"{text.name}: {len(examples):,} pairs, {int(examples.lengths().sum()):,} tokens")
        if examples.dropped:
            report(f"{text.name}: {examples.dropped} pairs dropped (over {maximum} tokens, or one side blank)")
        if examples.truncated:
            report(f"{text.name}: {examples.truncated} pairs truncated to {maximum} tokens")
        splits.append(examples)
    train, valid = splits
    return train, Validation(valid, [texts.valid.targets[row] for row in valid.rows])


def _build_model(
    settings: Settings, tokenizer: PreTrainedTokenizerFast, report: Report
) -> SynthesizerForConditionalGeneration:
    config = build_config(settings, vocab_size=len(tokenizer))
    set_seed(settings.seed)
    try:
        model = SynthesizerForConditionalGeneration(config)
    # The allocator has no class of its own for a size that cannot be.
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise UserError(f"the model cannot be built: {one_line(error)}") from error
    model.generation_config.max_new_tokens = config.max_position_embeddings - 1
    report(f"{model.num_parameters(only_trainable=True):,} parameters, vocabulary of {len(tokenizer):,} pieces")
    return model


def _train(
    task: Translation,
    run: RunFolder,
    settings: Settings,
    model: SynthesizerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    train: Examples,
    validation: Validation,
    checkpoint: Checkpoint | None,
    report: Report,
    watch: Watch | None,
) -> Outcome:
    request, training = StopRequest(), settings.training
    trainer = SynthesizerTrainer(
        model,
        task=task,
        settings=settings,
        run=run,
        tokenizer=tokenizer,
        train=train,
        validation=validation,
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
            run.save_model(model)
        metrics = trainer.write_metrics()
    return Outcome(metrics, None if metrics["finished"] else request.received)


def _what_is_left(run: RunFolder) -> str:
    last = run.last_checkpoint()
    return "no checkpoint was saved yet" if last is None else f"{last.path.name} is left, --resume goes on from it"


def _info(task: Translation, data: Path, settings: Settings, texts: _Data) -> dict[str, Any]:
    return {
        "task": task.name,
        "source": task.source,
        "target": task.target,
        "data": str(data.resolve()),
        "commands": [_command()],
        "settings": settings.to_dict(),
        "fingerprints": texts.fingerprints(),
        "versions": _versions(),
    }


def _versions() -> dict[str, str | int]:
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "threads": torch.get_num_threads(),
    }


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
