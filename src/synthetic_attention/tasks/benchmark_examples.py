"""Examples of GLUE and SuperGLUE: the mixture that is trained on, and what is validated on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..data.examples import Pairs
from ..data.tokenizer import encode
from .benchmark_split import BenchmarkSplit, is_labeled
from .text_to_text import Mixture, training_pairs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["MixedPairs", "ScoredPairs", "few_of_each", "longest_target", "training_rows"]


@dataclass(frozen=True)
class MixedPairs(Pairs):
    """Pairs of several tasks, of which a pass of training has each in proportion to its number, up to a cap.

    Args:
        members: the indices of each task.
        cap: as of `Mixture`.
    """

    members: Mapping[str, np.ndarray]
    cap: int

    def mixture(self, seed: int = 0) -> Mixture:
        """The mixture of the tasks, in the order of `seed`."""
        return Mixture({task: len(indices) for task, indices in self.members.items()}, self.cap, seed)

    def draw(self, rng: np.random.Generator, seed: int = 0, number: int = 0) -> np.ndarray:
        """An epoch of the mixture: a task beyond the cap goes on where it stopped in the one before."""
        epoch = self.mixture(seed).epoch(number)
        return np.array([self.members[task][row] for task, row in epoch])

    def examples_per_pass(self) -> int:
        """Those of an epoch of the mixture."""
        return sum(self.mixture().counts().values())

    def tokens_per_pass(self) -> float:
        """Of each task the mean, times its examples in an epoch."""
        tokens, counts = self.lengths().sum(axis=1), self.mixture().counts()
        return float(sum(counts[task] * tokens[indices].mean() for task, indices in self.members.items()))


@dataclass(frozen=True)
class ScoredPairs(Pairs):
    """Pairs to validate on.

    Args:
        taught: the indices of those whose target is right. Of WSC some name a referent that is the wrong one.
    """

    taught: list[int]

    def right(self) -> Pairs:
        """Those whose target is right; all if there is none."""
        chosen = self.taught or range(len(self))
        return Pairs(
            [self.sources[index] for index in chosen],
            [self.targets[index] for index in chosen],
            [self.rows[index] for index in chosen],
        )


def training_rows(split: BenchmarkSplit) -> tuple[list[int], list[str], list[str]]:
    """What is trained on: the row that it comes from, the prompt and the target of each."""
    rows, sources, targets = [], [], []
    for row, item in enumerate(split.items):
        pairs = training_pairs(item.layout, [item.example]) if is_labeled(item.example) else [(split.sources[row], "")]
        rows += [row] * len(pairs)
        sources += [source for source, _ in pairs]
        targets += [wanted for _, wanted in pairs]
    return rows, sources, targets


def few_of_each(split: BenchmarkSplit, most: int) -> list[int]:
    """Rows with about `most` examples of each file, the same in every run; all if it is 0."""
    by_task: dict[tuple[str, str], dict[str, list[int]]] = {}
    for row, item in enumerate(split.items):
        # The answers to a question of MultiRC belong together.
        group = item.example.group or str(row)
        by_task.setdefault((item.owner, item.subset), {}).setdefault(group, []).append(row)
    rows: list[int] = []
    for groups in by_task.values():
        order, taken = list(groups.values()), 0
        for place in np.random.default_rng(0).permutation(len(order)) if most else range(len(order)):
            if most and taken and taken + len(order[place]) > most:
                break
            rows += order[place]
            taken += len(order[place])
    return sorted(rows)


def longest_target(split: BenchmarkSplit, tokenizer: PreTrainedTokenizerFast) -> int:
    """Tokens of the longest text that can be right for an example of the split, `</s>` included."""
    texts = {*split.targets, "5.0"}
    for item in split.items:
        texts.update(item.layout.labels)
        texts.update(item.example.answers)
        if item.task == "record":
            texts.update(item.example.texts["entities"].split(", "))
        if item.task == "wsc":
            texts.add(item.example.texts["referent"])
    return max(len(ids) for ids in encode(tokenizer, sorted(texts)))
