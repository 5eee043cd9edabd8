"""The interface between tasks and the training, evaluation, comparison and inspection of their models.

A task is a frozen dataclass in its own file; its fields are its options.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from synthetic_attention.models import (
    SynthesizerConfig,
    SynthesizerForConditionalGeneration,
    SynthesizerForSequenceClassification,
)

from ..data.examples import IGNORED, Examples, OnLong, OnLongInput, pad, padded_inputs, token_batches
from ..data.files import listed
from ..data.source import Records
from ..data.tokenizer import Tokenizer
from ..errors import UserError

_T = TypeVar("_T")
Scores = dict[str, float | str]


@dataclass(frozen=True)
class Evaluation:
    """The result of scoring a split.

    Attributes:
        scores: by name; the signature of a score is `NAME_signature`.
        examples: the number of scored examples.
        predictions, suffix: the content and the suffix of the predictions file; None without predictions.
        truncated: inputs over the maximum length.
        skipped: malformed lines left out of the split.
    """

    scores: Scores
    examples: int
    predictions: str | None = None
    suffix: str = "jsonl"
    truncated: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class EvaluationLoop:
    """Runs a model on batches, without gradients; several processes share the batches.

    Args:
        generation: the settings of text generation; by default the task's.
        inputs: the name of the inputs in messages.
        rank, world_size: this process, and the number of processes.
        is_sharded: whether all processes have to run the model equally often, as each has only a part of its weights.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    batch_tokens: int = 4096
    generation: GenerationConfig | None = None
    on_long: OnLongInput = "error"
    inputs: str = "input"
    rank: int = 0
    world_size: int = 1
    is_sharded: bool = False

    @property
    def max_length(self) -> int:
        """The model's maximum length in tokens."""
        return cast(int, self.model.config.max_position_embeddings)

    def batch(self, task: Task, examples: Examples, rows: Sequence[int]) -> dict[str, Tensor]:
        """The collated examples on the model's device."""
        batch = task.collate([examples[row] for row in rows], cast(int, self.model.config.pad_token_id))
        return {name: value.to(self.model.device) for name, value in batch.items()}

    @torch.no_grad()
    def run(self, batches: Sequence[list[int]], step: Callable[[list[int]], _T]) -> list[_T]:
        """The result of `step` for each batch, the same list in every process."""
        was_training, results = self.model.training, {}
        self.model.eval()
        try:
            # With a sharded model, a process without a batch in the last round repeats one; its result is dropped.
            extra = -len(batches) % self.world_size if self.is_sharded else 0
            for number in range(self.rank, len(batches) + extra, self.world_size):
                result = step(batches[min(number, len(batches) - 1)])
                if number < len(batches):
                    results[number] = result
        finally:
            self.model.train(was_training)
        parts = gather_object([results]) if self.world_size > 1 else [results]
        merged = dict(chain.from_iterable(part.items() for part in parts))
        return [merged[number] for number in range(len(batches))]

    def run_each(
        self, costs: np.ndarray, step: Callable[[list[int]], Sequence[_T]], batches: Sequence[list[int]] | None = None
    ) -> list[_T]:
        """One result per example, in the order of the examples; `step` takes indices and returns a result for each.

        By default batches have up to `batch_tokens`, the longest examples first: a lack of memory shows at once.
        """
        if batches is None:
            batches = token_batches(costs, np.argsort(-costs, kind="stable"), self.batch_tokens)
        found = dict(zip(chain.from_iterable(batches), chain.from_iterable(self.run(batches, step)), strict=True))
        return [found[index] for index in range(len(found))]


@dataclass(frozen=True)
class Task(ABC):
    """A task, with its own kinds of `Split` and `Examples`. All methods raise UserError for errors in the data.

    Class attributes:
        name: the name on the command line.
        model_class: the model that is trained. It takes `labels` and `num_items_in_batch`: the loss is the sum over
            labels other than −100, divided by that number. A causal model shifts the labels itself, so the first label
            of each row has to be −100.
        score_labels: the scores of a validation that are shown, in order, with their titles. Every task has "loss".
        metric_for_best_model: the score that selects the checkpoint; higher is better except for "loss".
        unit: the word for the examples in messages.
        evaluation_options: options that do not affect training, so that an evaluation can override them.
    """

    name: ClassVar[str]
    model_class: ClassVar[type]
    score_labels: ClassVar[Mapping[str, str]] = {"loss": "loss"}
    metric_for_best_model: ClassVar[str] = "loss"
    unit: ClassVar[str] = "examples"
    evaluation_options: ClassVar[frozenset[str]] = frozenset()

    def check_requirements(self) -> None:  # noqa: B027
        """Raise UserError at the start of training if a package or file that scoring needs is missing."""

    @abstractmethod
    def records(self, data: Path, split: str) -> Records:
        """The records of a split of `data`, a folder, a file or a hub data set. Training needs "train" and "valid"."""

    def adapt_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """A new tokenizer, or that of a pretrained run, as this task uses it: same tokens and ids."""
        return tokenizer

    @abstractmethod
    def encode(
        self, split: Any, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> Examples:
        """Encode a split, for training or for scoring; `max_length` is the model's maximum length in tokens.

        Training may use a part of a split; NoExamplesError means that nothing is left of it.
        """

    def collate(self, examples: Sequence[tuple[Any, ...]], pad_token_id: int) -> dict[str, Tensor]:
        """A batch: the model's arguments, among them `labels` and `attention_mask`.

        Here of pairs: input_ids and attention_mask (B, S), labels (B, T).
        """
        sources, targets = zip(*examples, strict=True)
        return {**padded_inputs(sources, pad_token_id), "labels": pad(targets, IGNORED)}

    def config_changes(self, split: Any, tokenizer: Tokenizer) -> dict[str, Any]:
        """Fields of the model's configuration that follow from the task and its training data."""
        return {"vocab_size": len(tokenizer)}

    def validate(self, loop: EvaluationLoop, split: Any, examples: Any, loss: float) -> Scores:
        """Scores of a validation during training, besides `loss`; the same in every process."""
        return {}

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig | None:
        """The settings of text generation: the task's defaults updated by `options`; None without generation."""
        if options:
            flags = ", ".join(f"--{option.replace('_', '-')}" for option in options if option != "do_sample")
            raise UserError(f"got {flags or '--seed'}, but task {self.name} generates no text; leave it out")
        return None

    def generate(self, loop: EvaluationLoop, lines: Sequence[str], first_line: int = 1) -> tuple[list[str], int]:
        """One output line per input line, and the number of truncated inputs; messages count from `first_line`."""
        raise UserError(f"a run of task {self.name} gives no text for a line; synthesizer evaluate scores it")

    def evaluate(self, loop: EvaluationLoop, split: Any) -> Evaluation:
        """Score a trained model on a split; here with the scores of a validation."""
        examples = self.encode(split, loop.tokenizer, loop.max_length, loop.on_long)
        loss = evaluate_loss(self, loop, examples)
        scores = {"loss": loss, **self.validate(loop, split, examples, loss)}
        return Evaluation(scores, len(examples), truncated=examples.truncated, skipped=examples.skipped)


def possible_starts(task: Task | type[Task]) -> tuple[type, ...]:
    """The classes of pretrained models that a run can start from: a classifier also from an encoder-decoder."""
    if task.model_class is SynthesizerForSequenceClassification:
        return task.model_class, SynthesizerForConditionalGeneration
    return (task.model_class,)


def larger_is_better(task: Task | type[Task]) -> bool:
    """Whether larger values of the score that selects the checkpoint are better."""
    return task.metric_for_best_model != "loss"


def tokens_name(task: Task | type[Task]) -> str:
    """The title of the tokens that the speed counts."""
    return "source + target tokens" if task.model_class is SynthesizerForConditionalGeneration else "tokens"


def build_model(task: Task, config: SynthesizerConfig) -> PreTrainedModel:
    """A new model for a task. A sequence-to-sequence model generates up to its maximum length by default."""
    model: PreTrainedModel = task.model_class(config)
    reset_generation(task, model)
    return model


def reset_generation(task: Task, model: PreTrainedModel) -> None:
    """Generate as the model's configuration says; a sequence-to-sequence model up to its maximum length."""
    if model.can_generate():
        model.generation_config = config = GenerationConfig.from_model_config(model.config)
        if model.config.is_encoder_decoder and task.generation_config({}):
            config.max_new_tokens = model.config.max_position_embeddings - 1


def load_pretrained(model: PreTrainedModel, pretrained: PreTrainedModel) -> str | None:
    """Copy the weights of a pretrained model into a new one: all, or for a classifier the encoder.

    A classifier takes the head as well where the labels are the same. Token type embeddings that the pretrained model
    does not have start at zero. Returns the parts that keep new weights, in words; None if every weight was copied.

    Raises:
        RuntimeError: the weights do not fit.
    """
    old, new, notes = pretrained.state_dict(), model.state_dict(), []
    head = {name: weight for name, weight in new.items() if name.startswith("classifier.")}
    if not head:
        model.load_state_dict(old)
        return None
    weights = {name: old[name] for name in new if name in old}
    ours, theirs = (cast(Any, each.config) for each in (model, pretrained))
    same_labels = (ours.id2label, ours.problem_type) == (theirs.id2label, theirs.problem_type)
    if not (same_labels and head.keys() <= old.keys()):
        weights |= head
        notes.append(f"the head is new, for {listed([*ours.id2label.values()])}")
    for name in new.keys() - weights.keys():
        if "token_types." in name:
            weights[name] = torch.zeros_like(new[name])
            notes.append("the types of tokens start at zero")
    model.load_state_dict(weights)
    return "; ".join(notes) or None


def count_tokens(batch: Mapping[str, Tensor], with_targets: bool) -> Tensor:
    """The number of real tokens in a batch; `with_targets` for encoder–decoder models, whose labels count as well."""
    count = batch["attention_mask"].sum()
    return count + (batch["labels"] != IGNORED).sum() if with_targets else count


def evaluate_loss(task: Task, loop: EvaluationLoop, examples: Examples) -> float:
    """The mean loss per label, without dropout and label smoothing."""

    def step(rows: list[int]) -> tuple[float, int]:
        batch = loop.batch(task, examples, rows)
        labels = batch["labels"]
        # The labels of a regression are floats, and every one counts.
        count = labels.numel() if labels.is_floating_point() else int((labels != IGNORED).sum())
        return loop.model(**batch, num_items_in_batch=1).loss.item(), count

    lengths = examples.lengths()
    # Sorted by the last sequence, to which the loss belongs, then by the others.
    batches = token_batches(lengths.sum(axis=1), np.lexsort(lengths.T), loop.batch_tokens)
    losses, counts = zip(*loop.run(batches, step), strict=True)
    return float(sum(losses) / sum(counts))


def format_score(score: float | str) -> str:
    """A score for display; a score that could not be computed is a text with the reason."""
    return score if isinstance(score, str) else f"{score:.2f}"
