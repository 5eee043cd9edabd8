"""What training, evaluation and the command line ask of a task, and nothing else.

A task is a frozen dataclass in a file of its own; its fields are its options. It says how files are read, what a model
of it is trained on, and how that is scored. Training knows none of this.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from ..data.batching import Share
from ..data.examples import IGNORED, Examples, Long
from ..errors import UserError
from .options import check_options
from .types import Evaluation, Scores, Search, Split, written

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ..models import SynthesizerConfig

__all__ = ["Task"]

_S = TypeVar("_S", bound=Split)
_E = TypeVar("_E")


@dataclass(frozen=True)
class Task(ABC, Generic[_S, _E]):
    """One thing to learn. `_S` is a split of it as it is read, `_E` an encoded example.

    Class attributes:
        name: what the command line calls it.
        score_labels: the scores of a validation that people are shown, in order, and how they are written there. "loss"
            is among the scores of every task.
        selects_by: the score that picks the checkpoint.
        larger_is_better: whether more of it is better (perplexity and loss: False).
        model_class: the class in `synthetic_attention.models` that is trained. It has to take `labels` and
            `num_items_in_batch`, and to say `accepts_loss_kwargs`: the loss is a sum over the labels that are not −100,
            divided by that number. A causal model shifts the labels itself: the first of each row has to be −100.
        starts_from: classes of models, beside its own, that a run can start from.
        unit: what messages call the examples.
        tokens_name: what messages call the tokens that speed is counted in.
        packages: what scores depend on beside this package; their versions are kept with a run.
        scoring_options: the options that a trained run can be scored with others of.
        divides: whether an input that is too long can be answered sentence by sentence.
    """

    name: ClassVar[str]
    score_labels: ClassVar[Mapping[str, str]] = {"loss": "loss"}
    selects_by: ClassVar[str] = "loss"
    larger_is_better: ClassVar[bool] = False
    model_class: ClassVar[str]
    starts_from: ClassVar[frozenset[str]] = frozenset()
    unit: ClassVar[str] = "examples"
    tokens_name: ClassVar[str] = "tokens"
    packages: ClassVar[tuple[str, ...]] = ()
    scoring_options: ClassVar[frozenset[str]] = frozenset()
    divides: ClassVar[bool] = False

    @classmethod
    def on_long(cls) -> str:
        """What an evaluation can do about inputs that are too long, as the command line writes it."""
        return "--on-long split or --on-long truncate" if cls.divides else "--on-long truncate"

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The task with these options, from run.yaml or the command line.

        Raises:
            UserError: an option is unknown (the known are listed), missing, or of another type.
        """
        check_options(cls, options)
        return cls(**options)

    def options(self) -> dict[str, Any]:
        """Plain values from which `from_options` makes the task again."""
        return asdict(self)

    def lasting_options(self) -> dict[str, Any]:
        """Those of `options` that a trained model depends on: all but `scoring_options`."""
        return {name: value for name, value in self.options().items() if name not in self.scoring_options}

    def scored_with(self, options: Mapping[str, Any]) -> Self:
        """The task with other `scoring_options`.

        Raises:
            UserError: an option is none of them.
        """
        for option in options:
            if option not in self.scoring_options:
                known = ", ".join(sorted(self.scoring_options)) or "none"
                raise UserError(f"got {option} for the scoring of {self.name}; it has of such options: {known}")
        return type(self).from_options({**self.options(), **options})

    def check(self) -> None:
        """Refuse at the start what would only fail at the first validation, hours later.

        Raises:
            UserError: something that scoring needs is missing.
        """

    @classmethod
    def default_data(cls) -> Path | None:
        """The data where none is named; None if it has to be."""
        return None

    @classmethod
    def default_options(cls) -> Mapping[str, Any]:
        """The options that fit `default_data`, for those that are not given."""
        return {}

    @abstractmethod
    def read(self, data: Path, split: str) -> _S:
        """Read a split of `data`, a folder or a file. "train" and "valid" have to be there for training.

        Raises:
            UserError: something is missing or cannot be read.
        """

    @abstractmethod
    def tokenizer(self, split: _S, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
        """A tokenizer made from the training split.

        Raises:
            UserError: the vocabulary cannot have that size.
        """

    def taken_over(self, tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
        """The tokenizer of a run to start from, as this task uses it: the same pieces with the same ids."""
        return tokenizer

    def fill(self, model: PreTrainedModel, trained: PreTrainedModel) -> str | None:
        """Put the weights of the model of a run to start from into a new model.

        Returns:
            What of the new model they are not for, and why, in words; None where they are for all of it.

        Raises:
            RuntimeError: they do not fit.
        """
        model.load_state_dict(trained.state_dict())
        return None

    @abstractmethod
    def examples(
        self,
        split: _S,
        tokenizer: PreTrainedTokenizerFast,
        maximum: int,
        long: Long = "error",
        training: bool = False,
    ) -> Examples[_E]:
        """Encode a split.

        Args:
            maximum: the longest sequence of the model.
            long: what becomes of examples that are longer.
            training: to be trained on, rather than scored.

        Raises:
            UserError: an example is longer and `long` is "error"; or none is left.
        """

    @abstractmethod
    def collate(self, examples: Sequence[_E], pad_token_id: int) -> dict[str, Tensor]:
        """The arguments of the model for a batch, `attention_mask` and `labels` among them."""

    def tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        """How many real tokens a batch has: the sum of `lengths()` over its examples."""
        return batch["attention_mask"].sum()

    def too_long(self, split: _S, tokenizer: PreTrainedTokenizerFast, maximum: int) -> int:
        """How many inputs of a split an evaluation would refuse, or cut, for being over `maximum` tokens."""
        return self.examples(split, tokenizer, maximum, "truncate").truncated

    def can_score(self, split: _S) -> bool:
        """Whether a split has what outputs are scored against; of some test files the labels are hidden."""
        return True

    def can_compute(self, score: str, reason: str) -> bool:
        """Whether a score that an evaluation could not compute, for `reason`, can be computed by now."""
        return False

    def config_changes(self, split: _S, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
        """Fields of the model's configuration that follow from the task and its training data."""
        return {"vocab_size": len(tokenizer)}

    @classmethod
    def model_type(cls) -> type[PreTrainedModel]:
        """The class that is trained."""
        return cast(
            "type[PreTrainedModel]", getattr(importlib.import_module("synthetic_attention.models"), cls.model_class)
        )

    def build(self, config: SynthesizerConfig) -> PreTrainedModel:
        """A new model.

        Raises:
            ValueError: the configuration does not fit it.
        """
        return self.model_type()(config)

    @torch.no_grad()
    def loss(self, model: PreTrainedModel, examples: Examples[_E], share: Share) -> float:
        """The loss per label that is scored, with dropout and label smoothing off."""
        lengths = examples.lengths()
        pad_token_id = cast(int, model.config.pad_token_id)
        was_training = model.training
        total, labels = 0.0, 0
        model.eval()
        try:
            # Sorted by the last sequence, which the loss is about, then by the others.
            for rows in share.batches(lengths.sum(axis=1), np.lexsort(lengths.T)):
                batch = self.collate([examples[row] for row in rows], pad_token_id)
                scored = batch["labels"]
                # A number is no class that could be ignored.
                labels += scored.numel() if scored.is_floating_point() else int((scored != IGNORED).sum())
                inputs = {name: value.to(model.device) for name, value in batch.items()}
                total += model(**inputs, num_items_in_batch=1).loss.item()
        finally:
            model.train(was_training)
        return sum(share.gather([total])) / sum(share.gather([labels]))

    def validate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        split: _S,
        examples: Examples[_E],
        loss: float,
        share: Share,
    ) -> Scores:
        """Scores beside the loss during training, of the whole split, the same in every process.

        Args:
            examples: those of `split`.
            loss: what `loss` gave for them.
        """
        return {}

    def search(self, options: Mapping[str, Any]) -> Search | None:
        """How to generate text, with `options` in place of the defaults; None for tasks that generate none.

        Raises:
            UserError: an option cannot be, or the task has none.
        """
        if options:
            flags = {name: name.replace("_", "-") for name in options} | {"split_long": "on-long split"}
            given = ", ".join(f"--{flags[name]}" for name in options)
            raise UserError(f"got {given}, but task {self.name} generates no text; leave it out")
        return None

    @abstractmethod
    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        split: _S,
        search: Any,
        truncate: bool = False,
    ) -> Evaluation:
        """Score a split with a trained model.

        Args:
            search: what `search` gave.
            truncate: cut inputs that are too long for the model, rather than refuse them.

        Raises:
            UserError: an input is too long and `truncate` is off.
        """

    def generate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        lines: Sequence[str],
        search: Any,
        truncate: bool = False,
        where: str = "input",
        first_line: int = 1,
    ) -> tuple[list[str], int]:
        """A line for each line, in order, and how many were cut to the model's maximum.

        Args:
            where: what messages call the lines.
            first_line: the number of the first of them, in messages.

        Raises:
            UserError: a line is too long and `truncate` is off, or the task gives no line for a line.
        """
        raise UserError(f"a run of task {self.name} gives no text for a line; synthesizer evaluate scores it")

    def line_search(self, options: Mapping[str, Any]) -> Search | None:
        """How `generate` makes a line of a line: as `search` has it, unless a task is scored without writing text.

        Raises:
            UserError: an option cannot be, or the task has none.
        """
        return self.search(options)

    def sampling(self, options: Mapping[str, Any]) -> Any:
        """How `continue_prompt` draws tokens.

        Raises:
            UserError: an option cannot be, or the task continues no prompt.
        """
        raise UserError(f"a run of task {self.name} continues no --prompt; only runs of language-modeling do")

    def continue_prompt(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        prompt: str,
        sampling: Any,
        write: Callable[[str], object],
    ) -> None:
        """Write what follows `prompt`, as it comes.

        Args:
            sampling: what `sampling` gave.

        Raises:
            UserError: the prompt is too long, or the task continues none.
        """
        self.sampling({})

    def improves(self, scores: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
        """Whether a validation is at least as good as the best so far (which may be empty).

        Of equals the later one is taken: it has been trained longer.
        """
        if not best:
            return True
        new, old = scores[self.selects_by], best[self.selects_by]
        return bool(new >= old if self.larger_is_better else new <= old)

    @classmethod
    def headline(cls, scores: Mapping[str, Any]) -> str:
        """The scores that people are shown, on a line: "BLEU 36.91, chrF 61.20"."""
        return ", ".join(f"{label} {written(scores[key])}" for key, label in cls.score_labels.items() if key in scores)
