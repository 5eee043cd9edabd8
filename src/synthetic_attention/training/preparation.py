"""What training starts from: the splits, the tokenizer, the examples, a new model. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast, set_seed

from ..data.examples import Examples
from ..tasks import UserError
from ..tasks.base import Task
from ..tasks.types import Split
from .failures import one_line
from .settings import Settings, build_config
from .source import Source
from .trainer import Validation

__all__ = ["Data", "Materials", "Report", "prepare"]

Report = Callable[[str], object]


@dataclass(frozen=True)
class Data:
    """The splits that training needs, as they were read."""

    train: Split
    valid: Split

    @classmethod
    def read(cls, task: Task[Any, Any], path: Path) -> Data:
        """Read them.

        Raises:
            UserError: one is missing or cannot be read.
        """
        return cls(task.read(path, "train"), task.read(path, "valid"))

    def fingerprints(self) -> dict[str, Any]:
        """What tells whether two runs read the same."""
        return {"train": self.train.fingerprint(), "valid": self.valid.fingerprint()}


@dataclass(frozen=True)
class Materials:
    """All that a trainer is made of, beside its settings."""

    tokenizer: PreTrainedTokenizerFast
    train: Examples[Any]
    validation: Validation
    model: PreTrainedModel


def prepare(
    task: Task[Any, Any],
    data: Data,
    settings: Settings,
    report: Report,
    tokenizer: PreTrainedTokenizerFast | None = None,
    source: Source | None = None,
) -> Materials:
    """Encode the splits and build the model: new weights are those that the seed gives.

    Args:
        report: gets a line for each split and for the model.
        tokenizer: that of a run; by default that of `source`, or a new one from the training split.
        source: the run to start from, whose model `settings` have.

    Raises:
        UserError: examples are too long, the tokenizer or the model cannot be built, or `source` does not fit.
    """
    config = build_config(settings)
    maximum = config.max_position_embeddings
    if source is not None:
        report(source.describe())
        tokenizer = tokenizer or task.taken_over(source.tokenizer())
    if tokenizer is None:
        tokenizer = task.tokenizer(data.train, config.vocab_size, maximum)
    encoded = []
    for split in (data.train, data.valid):
        examples = task.examples(
            split, tokenizer, maximum, settings.training.long_sentences, training=split is data.train
        )
        report(f"{split.name}: {len(examples):,} {task.unit}, {int(examples.lengths().sum()):,} tokens")
        if examples.skipped:
            report(f"{split.name}: {examples.skipped} malformed lines left out")
        if examples.dropped:
            report(f"{split.name}: {examples.dropped} {task.unit} dropped (over {maximum} tokens, or blank)")
        if examples.truncated:
            report(f"{split.name}: {examples.truncated} {task.unit} truncated to {maximum} tokens")
        encoded.append(examples)
    model = _build_model(task, settings, data, tokenizer, report, source)
    return Materials(tokenizer, encoded[0], Validation(data.valid, encoded[1]), model)


def _build_model(
    task: Task[Any, Any],
    settings: Settings,
    data: Data,
    tokenizer: PreTrainedTokenizerFast,
    report: Report,
    source: Source | None,
) -> PreTrainedModel:
    # Read before the seed is set: whatever reading draws, a run from old weights has the dropout of one from new ones.
    trained = None if source is None or source.scratch else source.model()
    config = build_config(settings, **task.config_changes(data.train, tokenizer))
    set_seed(settings.seed)
    try:
        model = task.build(config)
    # The allocator has no class of its own for a size that cannot be.
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise UserError(f"the model cannot be built: {one_line(error)}") from error
    if source is not None and trained is not None and (news := source.fill(task, model, trained)):
        report(news)
    report(f"{model.num_parameters(only_trainable=True):,} parameters, vocabulary of {len(tokenizer):,} pieces")
    return model
