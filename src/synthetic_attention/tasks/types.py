"""What a task is given and gives back, beside models: splits of data, ways to generate, scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Evaluation", "Scores", "Search", "Split", "written"]

Scores = dict[str, float | str]


class Split(Protocol):
    """A part of the data as it was read."""

    @property
    def name(self) -> str:
        """What messages and files call it."""

    def __len__(self) -> int: ...

    def fingerprint(self) -> dict[str, str | int]:
        """What tells whether two runs read the same data; `split` is its name."""


class Search(Protocol):
    """How text is generated, for tasks that generate."""

    @property
    def label(self) -> str:
        """Part of the name of the files that come of it."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as results keep them."""


@dataclass(frozen=True)
class Evaluation:
    """What came of scoring a split.

    Attributes:
        scores: by name; a score that depends on how it is computed has a signature beside it, `NAME_signature`.
        examples: how many were scored.
        predictions: the content of the file of predictions, and the suffix of its name.
        answered: how many inputs the model was run on; what a speed is counted in.
        truncated: how many inputs were cut to the model's maximum.
        divided: how many inputs over the model's maximum were answered sentence by sentence.
        skipped: how many malformed lines of the split were left out.
        files: further files to read, their content by the ending of their names: {"examples.md": …}.
    """

    scores: Scores
    examples: int
    predictions: str
    suffix: str
    answered: int
    truncated: int = 0
    divided: int = 0
    skipped: int = 0
    files: Mapping[str, str] = field(default_factory=dict)


def written(score: float | str) -> str:
    """A score as people are shown it; a score that could not be computed is a text that says why."""
    return score if isinstance(score, str) else f"{score:.2f}"
