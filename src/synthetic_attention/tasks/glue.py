"""GLUE and SuperGLUE from text to text, with T5's prompts, label words and mixture: one model for all their tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..data.examples import OnLong, Pairs
from ..data.files import named_split
from ..data.hub import HubDataset, is_hub_name
from ..errors import UserError, require
from ..models.loss import IGNORED
from .base import EvaluationLoop, Scores
from .generation import make_generation_config
from .glue_data import (
    DEFAULT_CAP,
    SUITES,
    GlueSplit,
    Item,
    TaskMixture,
    TaskName,
    chosen_tasks,
    longest_target,
    present_tasks,
    read_files,
    read_hub,
    sample_rows,
    shorten_prompts,
    training_pairs,
)
from .glue_scores import SCORE_LABELS, prediction_lines, suite_scores
from .seq2seq import SequenceToSequence

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers import PreTrainedTokenizerFast as Tokenizer


@dataclass(frozen=True)
class GlueSuite(SequenceToSequence[GlueSplit]):
    """GLUE or SuperGLUE, or both, as in T5: a prompt in, a label word out.

    Args:
        tasks: one task ("sst2") or several; by default all that have files. With both suites a name may include its
            suite, "superglue/rte".
        together: one model for the tasks of GLUE and of SuperGLUE.
        cap: the most examples of one task in an epoch of training.
        valid_examples: the most examples of each task (and subset of MNLI) in a validation; questions of MultiRC stay
            whole; 0 for all. An evaluation scores all.
        skip_bad_lines: skip and count malformed lines.
        revision: of the suite on the hub that --data names (hub:nyu-mll/glue, hub:aps/super_glue). With `together` the
            newest revision of the other suite is read.
    """

    tasks: str | list[str] | None = None
    together: bool = False
    cap: int = DEFAULT_CAP
    valid_examples: int = 0
    skip_bad_lines: bool = False
    revision: str | None = None
    score_labels: ClassVar[Mapping[str, str]] = SCORE_LABELS
    metric_for_best_model: ClassVar[str] = "average"
    unit: ClassVar[str] = "examples"
    tokens_name: ClassVar[str] = "prompt + target tokens"
    packages: ClassVar[tuple[str, ...]] = ("scikit-learn", "scipy")

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise UserError(f"got cap={self.cap}; expected at least 1")
        if self.valid_examples < 0:
            raise UserError(f"got valid_examples={self.valid_examples}; expected 0 (all) or more")
        self._chosen()

    def _chosen(self) -> list[TaskName]:
        """The tasks of the options, whether they have files or not."""
        return chosen_tasks(self._suites, [self.tasks] if isinstance(self.tasks, str) else self.tasks or [])

    @property
    def _suites(self) -> tuple[str, ...]:
        return tuple(SUITES) if self.together else (self.name,)

    def check_requirements(self) -> None:
        """Check that the packages of the metrics are installed."""
        require("sklearn.metrics", "glue", f"scoring of {self.name}")
        require("scipy.stats", "glue", f"scoring of {self.name}")

    def read(self, data: Path, split: str) -> GlueSplit:
        """Read the official files of a split, of the chosen tasks or of all that have files.

        Args:
            data: the folder that contains those of the tasks or of the suites; for a single task also the folder of its
                files; or the name of this suite on the hub (the other one has its usual name there).
        """
        names, split = self._chosen(), named_split(split)
        if is_hub_name(data):
            hub = {self.name: HubDataset.of(data).name}
            revisions = {self.name: self.revision}
            parts = [part for name in names for part in read_hub(hub, name, split, revisions.get(name[0]))]
        elif data.is_dir():
            alone = len(names) == 1
            if not self.tasks:
                names = present_tasks(data, names, split)
            parts = [part for name in names for part in read_files(data, name, split, alone, self.skip_bad_lines)]
        else:
            problem = "a file" if data.exists() else "no such folder"
            raise UserError(f"{data}: {problem}; expected a folder with the official files of {self.name}")
        return GlueSplit.of(split, parts)

    def encode(
        self, split: GlueSplit, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> Pairs:
        """In training the mixture of the tasks; otherwise at most `valid_examples` of each task.

        Examples without label are dropped.
        """
        if training:
            chosen = [
                (row, source, target) for row, item in enumerate(split.items) for source, target in training_pairs(item)
            ]
        else:
            chosen = [(row, split.sources[row], split.targets[row]) for row in sample_rows(split, self.valid_examples)]
        items = [split.items[row] for row, _, _ in chosen]
        sources, targets = [source for _, source, _ in chosen], [target for _, _, target in chosen]
        texts = GlueSplit(split.name, sources, targets, items, sides=split.sides, skipped=split.skipped)
        pairs = super().encode(texts, tokenizer, max_length, on_long, training)
        rows, kept = [chosen[row][0] for row in pairs.rows], [items[row] for row in pairs.rows]
        common = {"dropped": pairs.dropped, "truncated": pairs.truncated, "skipped": pairs.skipped}
        if not training:
            return Pairs(pairs.sources, _loss_targets(kept, pairs), rows, **common)
        members: dict[str, list[int]] = {}
        for index, item in enumerate(kept):
            members.setdefault(item.owner, []).append(index)
        arrays = {task: np.array(indices) for task, indices in members.items()}
        return TaskMixture(pairs.sources, pairs.targets, rows, arrays, self.cap, **common)

    def shorten(self, split: GlueSplit, tokenizer: Tokenizer, max_length: int) -> tuple[list[str], int]:
        """Cut the longest text of a prompt instead of its end."""
        return shorten_prompts(split, tokenizer, max_length)

    def longest_output(self, split: GlueSplit, tokenizer: Tokenizer) -> int:
        """The tokens of the longest target."""
        return longest_target(split, tokenizer)

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """Greedy search, updated by `options`."""
        return make_generation_config(options, num_beams=1, length_penalty=1.0)

    def score(self, outputs: Sequence[str], references: Sequence[Item], loop: EvaluationLoop | None = None) -> Scores:
        """The official scores of the tasks and their averages."""
        return suite_scores(references, outputs, suites=self._suites)

    def predictions(self, split: GlueSplit, outputs: Sequence[str]) -> tuple[str, str]:
        """JSON lines, see `prediction_lines`."""
        return prediction_lines(split.items, outputs), "jsonl"


def _loss_targets(items: Sequence[Item], pairs: Pairs) -> list[np.ndarray]:
    """The targets for the validation loss: −100 for examples of WSC with a wrong referent, unless all are wrong."""
    correct = [item.task != "wsc" or item.example.label == 1 for item in items]
    if not any(correct):
        return pairs.targets
    ignored = np.array([IGNORED], dtype=np.int32)
    return [target if is_correct else ignored for target, is_correct in zip(pairs.targets, correct, strict=True)]


@dataclass(frozen=True)
class Glue(GlueSuite):
    """GLUE: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE and WNLI; with `together` SuperGLUE as well."""

    name: ClassVar[str] = "glue"


@dataclass(frozen=True)
class SuperGlue(GlueSuite):
    """SuperGLUE: BoolQ, CB, COPA, MultiRC, ReCoRD, RTE, WiC and WSC; with `together` GLUE as well."""

    name: ClassVar[str] = "superglue"
