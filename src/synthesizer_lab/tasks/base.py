"""The interface between tasks and the training, evaluation, comparison and inspection of their models.

A task is a frozen dataclass in its own file; its fields are its options.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar, cast, get_type_hints

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from synthetic_attention.models.loss import IGNORED

from ..data.classification import listed
from ..data.examples import Examples, OnLong, OnLongInput, Pair, TextExamples, pair_collate, token_batches
from ..data.records import Records
from ..errors import UserError
from ..validation import check_value

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers import PreTrainedTokenizerFast as Tokenizer

    from synthetic_attention.models import SynthesizerConfig

_S = TypeVar("_S", bound="Split")
_E = TypeVar("_E")
_T = TypeVar("_T")
Scores = dict[str, float | str]


class Split(Protocol):
    """A part of the data. `has_labels`: outputs can be scored against it; some test sets hide their labels."""

    @property
    def name(self) -> str: ...
    @property
    def has_labels(self) -> bool: ...
    def __len__(self) -> int: ...
    def fingerprint(self) -> dict[str, str | int]:
        """Digests that tell whether two runs read the same data."""

    def columns(self) -> Mapping[str, Iterable[str]]:
        """By the names of the digests, the lines of which they are."""


@dataclass(frozen=True)
class Evaluation:
    """The result of scoring a split.

    Attributes:
        scores: by name; the signature of a score is `NAME_signature`.
        examples: the number of scored examples.
        predictions, suffix: the content and the suffix of the predictions file.
        truncated: inputs over the maximum length.
        skipped: malformed lines left out of the split.
    """

    scores: Scores
    examples: int
    predictions: str
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
        gather: joins the lists of all processes; every process has to call it.
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
    gather: Callable[[list[Any]], list[Any]] = lambda mine: mine
    is_sharded: bool = False

    def __post_init__(self) -> None:
        check_value("on_long", self.on_long, OnLongInput)

    @property
    def max_length(self) -> int:
        """The model's maximum length in tokens."""
        return cast(int, self.model.config.max_position_embeddings)

    def batch(self, task: Task[Any, _E], examples: Examples[_E], rows: Sequence[int]) -> dict[str, Tensor]:
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
        merged = dict(chain.from_iterable(part.items() for part in self.gather([results])))
        return [merged[number] for number in range(len(batches))]

    def run_each(
        self, costs: np.ndarray, step: Callable[[list[int]], Sequence[_T]], batches: Sequence[list[int]] | None = None
    ) -> list[_T]:
        """One result per example, in the order of the examples; `step` takes indices and returns a result for each.

        By default batches have up to `batch_tokens`, the longest examples first: a lack of memory shows at once.
        """
        if batches is None:
            batches = token_batches(costs, np.argsort(-costs, kind="stable"), self.batch_tokens)
        results = chain.from_iterable(self.run(batches, step))
        found = dict(zip(chain.from_iterable(batches), results, strict=True))
        return [found[index] for index in range(len(found))]


@dataclass(frozen=True)
class Task(ABC, Generic[_S, _E]):
    """A task. `_S` is a split as read from its files, `_E` an encoded example.

    Class attributes:
        name: the name on the command line.
        model_class: the model that is trained. It takes `labels` and `num_items_in_batch`: the loss is the sum over
            labels other than −100, divided by that number. A causal model shifts the labels itself, so the first label
            of each row has to be −100.
        pretrained_classes: other model classes whose runs can be loaded as a start.
        score_labels: the scores of a validation that are shown, in order, with their titles. Every task has "loss".
        metric_for_best_model: the score that selects the checkpoint.
        greater_is_better: whether a higher score is better (perplexity and loss: False).
        predict_with_generate: whether an evaluation generates text.
        unit: the word for the examples in messages.
        counted: the word for the examples in fingerprints.
        stored_unit: the word for the examples in tables of large text.
        tokens_name: the title of the tokens that the speed counts.
        packages: packages that the scores depend on; their versions are recorded with a run.
        former_options: options of older runs that have no effect any more.
        evaluation_options: options that do not affect training, so that an evaluation can override them.
    """

    name: ClassVar[str]
    model_class: ClassVar[type]
    pretrained_classes: ClassVar[frozenset[type]] = frozenset()
    score_labels: ClassVar[Mapping[str, str]] = {"loss": "loss"}
    metric_for_best_model: ClassVar[str] = "loss"
    greater_is_better: ClassVar[bool] = False
    predict_with_generate: ClassVar[bool] = False
    unit: ClassVar[str] = "examples"
    counted: ClassVar[str] = "texts"
    stored_unit: ClassVar[str] = "texts"
    tokens_name: ClassVar[str] = "tokens"
    packages: ClassVar[tuple[str, ...]] = ()
    evaluation_options: ClassVar[frozenset[str]] = frozenset()
    former_options: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """The types of the options."""
        hints = get_type_hints(cls)
        return {field.name: hints[field.name] for field in fields(cls)}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The task with these options, from run.yaml or the command line; raises UserError for a wrong one."""
        types = cls.option_types()
        options = {name: value for name, value in options.items() if name not in cls.former_options}
        for name, value in options.items():
            if name not in types:
                raise UserError(f"got unknown option {name!r} of task {cls.name}; expected some of: {', '.join(types)}")
            check_value(name, value, types[name])
            least = int(name.startswith("max_"))
            if isinstance(value, int) and value < least:
                raise UserError(f"got {name}={value}; expected at least {least}")
        for field in fields(cls):
            if field.default is MISSING and field.name not in options:
                raise UserError(f"task {cls.name} needs {field.name}; pass --{field.name} or --set {field.name}=…")
        return cls(**options)

    def with_evaluation_options(self, options: Mapping[str, Any]) -> Self:
        """The task with other values of its `evaluation_options`; raises UserError for other options."""
        for option in options.keys() - self.evaluation_options:
            known = ", ".join(sorted(self.evaluation_options)) or "none"
            raise UserError(f"got {option} for the evaluation of task {self.name}; its options of evaluation: {known}")
        return self.from_options({**asdict(self), **options})

    def check_requirements(self) -> None:
        """Raise UserError at the start of training if a package or file that scoring needs is missing."""

    def read(self, data: Path, split: str) -> _S:
        """Read a split of `data`, a folder, a file or a hub data set. Training needs "train" and "valid".

        Raises:
            UserError: the data is missing or malformed. All methods raise UserError for errors in data and options.
        """
        return self.read_with(data, split)

    def records(self, data: Path, split: str, stream: bool = False) -> Records[Any] | None:
        """The records of a split, for training text of any size; None if the task has to read it as a whole.

        With `stream`, hub data is downloaded while it is read. Such a task implements the next methods.
        """
        return None

    def make_split(self, records: Records[Any], rows: Sequence[Any], first: int = 1) -> _S:
        """A split of some of the records, of which the first has number `first`."""
        raise NotImplementedError

    def read_with(self, data: Path, split: str, labels: frozenset[str] = frozenset(), stream: bool = False) -> _S:
        """Read a split without another pass over the training data, whose `labels` are known."""
        records = self.records(data, split, stream)
        assert records is not None
        found = self.make_split(replace(records, labels=labels), [*records.read()])
        self.check_split(found, " and ".join(map(str, records.files)) or f"{data}, split {split!r}")
        return found

    def check_split(self, split: _S, where: str) -> None:
        """Raise UserError if a whole split, which was read from `where`, has only blank texts."""

    def labels(self, split: _S) -> Iterable[str]:
        """The labels in a split that the model's configuration depends on."""
        return ()

    def tokenize(self, split: _S, tokenizer: Tokenizer, max_length: int, on_long: OnLong) -> TextExamples[Any]:
        """The tokens of a part of the training split; NoExamplesError if nothing is left of it."""
        return cast("TextExamples[Any]", self.encode(split, tokenizer, max_length, on_long, training=True))

    def assemble(self, texts: TextExamples[Any], tokenizer: Tokenizer, max_length: int) -> Examples[_E]:
        """The training examples of tokenized texts."""
        return cast("Examples[_E]", texts)

    @abstractmethod
    def train_tokenizer(self, split: _S, vocab_size: int, max_length: int) -> Tokenizer:
        """Train a tokenizer on the training split."""

    def adapt_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer of a pretrained run as this task uses it: same tokens and ids."""
        return tokenizer

    @abstractmethod
    def encode(
        self, split: _S, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> Examples[_E]:
        """Encode a split, for training or for scoring; `max_length` is the model's maximum length in tokens."""

    def collate(self, examples: Sequence[_E], pad_token_id: int) -> dict[str, Tensor]:
        """A batch: the model's arguments, among them `labels` and `attention_mask` or `segment_ids`; here of pairs."""
        return pair_collate(cast("Sequence[Pair]", examples), pad_token_id)

    def config_changes(self, split: _S, tokenizer: Tokenizer) -> dict[str, Any]:
        """Fields of the model's configuration that follow from the task and its training data."""
        return {"vocab_size": len(tokenizer)}

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig | None:
        """The settings of text generation: the task's defaults updated by `options`; None without generation."""
        if options:
            flags = ", ".join(f"--{option.replace('_', '-')}" for option in options)
            raise UserError(f"got {flags}, but task {self.name} generates no text; leave it out")
        return None

    def validate(self, loop: EvaluationLoop, split: _S, examples: Examples[_E], loss: float) -> Scores:
        """Scores of a validation during training, besides `loss`; the same in every process."""
        return {}

    @abstractmethod
    def evaluate(self, loop: EvaluationLoop, split: _S) -> Evaluation:
        """Score a trained model on a split."""

    def generate(self, loop: EvaluationLoop, lines: Sequence[str], first_line: int = 1) -> tuple[list[str], int]:
        """One output line per input line, and the number of truncated inputs; messages count from `first_line`."""
        raise UserError(f"a run of task {self.name} gives no text for a line; synthesizer evaluate scores it")


def build_model(task: Task[Any, Any], config: SynthesizerConfig) -> PreTrainedModel:
    """A new model for a task. A sequence-to-sequence model generates up to its maximum length by default."""
    model: PreTrainedModel = task.model_class(config)
    reset_generation(task, model)
    return model


def reset_generation(task: Task[Any, Any], model: PreTrainedModel) -> None:
    """Generate as the model's configuration says; a sequence-to-sequence model up to its maximum length."""
    if model.can_generate():
        model.generation_config = config = GenerationConfig.from_model_config(model.config)
        if task.predict_with_generate:
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
    if "segment_ids" in batch:
        return (batch["segment_ids"] != 0).sum()
    count = batch["attention_mask"].sum()
    return count + (batch["labels"] != IGNORED).sum() if with_targets else count


def batch_losses(
    task: Task[Any, _E], loop: EvaluationLoop, examples: Examples[_E], batches: Sequence[list[int]]
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The summed loss and the number of labels of each batch, without dropout and label smoothing."""

    def step(rows: list[int]) -> tuple[float, int]:
        batch = loop.batch(task, examples, rows)
        labels = batch["labels"]
        # The labels of a regression are floats, and every one counts.
        count = labels.numel() if labels.is_floating_point() else int((labels != IGNORED).sum())
        return loop.model(**batch, num_items_in_batch=1).loss.item(), count

    losses, counts = zip(*loop.run(batches, step), strict=True)
    return losses, counts


def evaluate_loss(task: Task[Any, _E], loop: EvaluationLoop, examples: Examples[_E]) -> float:
    """The mean loss per label."""
    lengths = examples.lengths()
    # Sorted by the last sequence, to which the loss belongs, then by the others.
    batches = token_batches(lengths.sum(axis=1), np.lexsort(lengths.T), loop.batch_tokens)
    losses, counts = batch_losses(task, loop, examples, batches)
    return sum(losses) / sum(counts)


def format_score(score: float | str) -> str:
    """A score for display; a score that could not be computed is a text with the reason."""
    return score if isinstance(score, str) else f"{score:.2f}"
