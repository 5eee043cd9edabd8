"""What the tasks `glue` and `superglue` share: one model from text to text for all their tasks, mixed as T5 mixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..data.batching import Share
from ..data.examples import Examples, Long, Pair, Pairs
from ..data.hub import HubSet, is_hub_name
from ..data.text import named_split
from ..errors import UserError
from .benchmark_examples import MixedPairs, ScoredPairs, few_of_each, longest_target, training_rows
from .benchmark_scores import SCORE_LABELS, prediction_lines, suite_scores
from .benchmark_split import (
    BenchmarkSplit,
    Item,
    TaskName,
    chosen_tasks,
    present_tasks,
    read_hub_items,
    read_items,
    shorten,
)
from .extras import require
from .generation import GREEDY, BeamSearch
from .seq2seq import SequenceToSequence, TextPairs
from .text_to_text import BENCHMARKS, DEFAULT_CAP
from .types import Evaluation, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["BenchmarkSuite"]


@dataclass(frozen=True)
class BenchmarkSuite(SequenceToSequence):
    """GLUE or SuperGLUE, or both, as T5 poses them: a prompt in, a label word out.

    Args:
        tasks: one ("sst2"), or some of them; by default all whose files are there. In both suites together a name may
            have its suite with it, "superglue/rte".
        together: one model for the tasks of GLUE and of SuperGLUE.
        cap: the most examples of one task in an epoch of training.
        valid_examples: the most of each task (of MNLI, of either part) that are scored in a validation, whole questions
            of MultiRC; 0 for all. An evaluation scores all.
        skip_bad_lines: leave malformed lines out and count them, rather than refuse them.
        revision: of the suite on the hub that --data names (hub:nyu-mll/glue, hub:aps/super_glue). With `together` the
            newest is read of the other one.
    """

    tasks: str | list[str] | None = None
    together: bool = False
    cap: int = DEFAULT_CAP
    valid_examples: int = 0
    skip_bad_lines: bool = False
    revision: str | None = None
    score_labels: ClassVar[Mapping[str, str]] = SCORE_LABELS
    selects_by: ClassVar[str] = "average"
    unit: ClassVar[str] = "examples"
    tokens_name: ClassVar[str] = "prompt + target tokens"
    packages: ClassVar[tuple[str, ...]] = ("scikit-learn", "scipy")

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise UserError(f"got cap={self.cap}; expected at least 1")
        if self.valid_examples < 0:
            raise UserError(f"got valid_examples={self.valid_examples}; expected 0 (all) or more")
        self.chosen()

    def chosen(self) -> list[TaskName]:
        """The tasks that are asked for, whether they are there or not.

        Raises:
            UserError: one is unknown.
        """
        return chosen_tasks(self.suites(), self._named())

    def suites(self) -> tuple[str, ...]:
        """The suites that tasks can be of."""
        return tuple(BENCHMARKS) if self.together else (self.name,)

    def _revision(self, name: TaskName) -> str | None:
        return self.revision if name[0] == self.name else None

    def _named(self) -> list[str]:
        return [self.tasks] if isinstance(self.tasks, str) else list(self.tasks or [])

    def check(self) -> None:
        """Refuse to start where the metrics are not installed."""
        require("sklearn.metrics", "glue", f"scoring of {self.name}")
        require("scipy.stats", "glue", f"scoring of {self.name}")

    def read(self, data: Path, split: str) -> BenchmarkSplit:
        """Read the official files of a split: of the tasks that are named, or of all that are there.

        Args:
            data: a folder that has those of the tasks, or of the suites; or, of one task, the folder of its files. Or
                the name on the hub of this suite; the other one is read from where it is known to be.

        Raises:
            UserError: a file is missing or cannot be read.
        """
        names, split = self.chosen(), named_split(split)
        if is_hub_name(data):
            hub = {self.name: HubSet.of(data).name}
            parts = [part for name in names for part in read_hub_items(hub, name, split, self._revision(name))]
        elif data.is_dir():
            alone = len(names) == 1
            if not self._named():
                names = present_tasks(data, names, split)
            parts = [part for name in names for part in read_items(data, name, split, alone, self.skip_bad_lines)]
        else:
            what = "a file" if data.exists() else "no such folder"
            raise UserError(f"{data}: {what}; expected a folder with the official files of {self.name}")
        return BenchmarkSplit.of(
            split, [item for part in parts for item in part.records], sum(part.skipped for part in parts)
        )

    def sides(self, split: TextPairs) -> tuple[str, str]:
        """Prompts and targets."""
        return f"{split.name} prompts", f"{split.name} targets"

    def examples(
        self,
        split: TextPairs,
        tokenizer: PreTrainedTokenizerFast,
        maximum: int,
        long: Long = "error",
        training: bool = False,
    ) -> Pairs:
        """For training the mixture of the tasks; else the examples themselves, at most `valid_examples` of each task.

        Examples without label are dropped.

        Raises:
            UserError: a side is longer and `long` is "error"; or no example is left.
        """
        assert isinstance(split, BenchmarkSplit)
        if training:
            rows, sources, targets = training_rows(split)
        else:
            rows = few_of_each(split, self.valid_examples)
            sources, targets = [split.sources[row] for row in rows], [split.targets[row] for row in rows]
        chosen = [split.items[row] for row in rows]
        texts = BenchmarkSplit(split.name, sources, targets, chosen, skipped=split.skipped)
        pairs = super().examples(texts, tokenizer, maximum, long, training)
        kept = [rows[row] for row in pairs.rows]
        common = {"dropped": pairs.dropped, "truncated": pairs.truncated, "skipped": pairs.skipped}
        if not training:
            items = [split.items[row] for row in kept]
            taught = [index for index, item in enumerate(items) if item.task != "wsc" or item.example.label == 1]
            return ScoredPairs(pairs.sources, pairs.targets, kept, taught, **common)
        members: dict[str, list[int]] = {}
        for index, row in enumerate(kept):
            members.setdefault(split.items[row].owner, []).append(index)
        arrays = {task: np.array(indices) for task, indices in members.items()}
        return MixedPairs(pairs.sources, pairs.targets, kept, arrays, self.cap, **common)

    def shorten(self, split: TextPairs, tokenizer: PreTrainedTokenizerFast, maximum: int) -> tuple[TextPairs, int]:
        """Prompts that are too long lose the end of their longest text, not their own."""
        assert isinstance(split, BenchmarkSplit)
        sources, count = shorten(split.items, split.sources, tokenizer, maximum)
        return replace(split, sources=sources), count

    def references(self, split: TextPairs, rows: Sequence[int]) -> Sequence[Item]:
        """The examples themselves."""
        assert isinstance(split, BenchmarkSplit)
        return [split.items[row] for row in rows]

    def score(self, predictions: Sequence[str], references: Sequence[Item]) -> Scores:
        """The official scores of the tasks that are there, and their averages."""
        return suite_scores(references, predictions, suites=self.suites())

    def loss(self, model: PreTrainedModel, examples: Examples[Pair], share: Share) -> float:
        """The loss per token of the targets that are right."""
        return super().loss(model, examples.right() if isinstance(examples, ScoredPairs) else examples, share)

    def greedy(self, split: TextPairs, tokenizer: PreTrainedTokenizerFast) -> BeamSearch:
        """Greedy, in as many tokens as the longest target has."""
        assert isinstance(split, BenchmarkSplit)
        return replace(GREEDY, max_tokens=longest_target(split, tokenizer))

    def search(self, options: Mapping[str, Any]) -> BeamSearch:
        """Greedy, unless `options` say otherwise."""
        return super().search({"beams": 1, "length_penalty": 1.0, **options})

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        split: TextPairs,
        search: BeamSearch,
        truncate: bool = False,
    ) -> Evaluation:
        """Write a target for each prompt, by default of as many tokens as the longest target has; score the labeled."""
        assert isinstance(split, BenchmarkSplit)
        if search.max_tokens is None:
            search = replace(search, max_tokens=max(longest_target(split, tokenizer), search.min_tokens + 1))
        return super().evaluate(model, tokenizer, split, search, truncate)

    def predictions(self, split: TextPairs, texts: Sequence[str]) -> tuple[str, str]:
        """JSON lines of all examples, as `prediction_lines` makes them."""
        assert isinstance(split, BenchmarkSplit)
        return prediction_lines(split.items, texts), "jsonl"
