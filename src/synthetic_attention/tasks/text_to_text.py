"""GLUE and SuperGLUE as text-to-text problems, as T5 (Raffel et al. 2020) poses them, and T5's mixture of tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..data.benchmark import BenchmarkTask, Example
from ..data.glue import GLUE
from ..data.superglue import SUPERGLUE

__all__ = [
    "BENCHMARKS",
    "DEFAULT_CAP",
    "Mixture",
    "prompt",
    "read_label",
    "target",
    "training_pairs",
]

BENCHMARKS: Mapping[str, Mapping[str, BenchmarkTask]] = {"glue": GLUE, "superglue": SUPERGLUE}
# T5's artificial limit on the size of a data set in a mixture, in its multi-task experiments.
DEFAULT_CAP = 2**19
_HIGHEST_SCORE = 5.0
_TWICE = frozenset({"glue/rte", "superglue/rte"})

# Words that do not tell one referent of WSC from another.
_DETERMINERS = frozenset(
    {"a", "an", "each", "every", "few", "her", "his", "many", "much", "my", "our", "some", "that", "the", "their"}
    | {"these", "this", "those", "which", "whose", "your"}
)


def prompt(task: BenchmarkTask, example: Example) -> str:
    """The text that a model reads: the name of the task, then each text after its name.

    >>> prompt(GLUE["qnli"], Example("0", {"question": "Who?", "sentence": "Ann did."}))
    'qnli question: Who? sentence: Ann did.'

    WSC is posed as in T5: the text with the pronoun between asterisks, and nothing of the candidate.
    """
    if task.name == "wsc":
        return _one_line(f"wsc: {example.texts['text']}")
    named = (f"{name}: {_clean(task.name, example.texts[name])}" for name in task.texts)
    return _one_line(" ".join([task.name, *named]))


def target(task: BenchmarkTask, example: Example) -> str:
    """The text that a model should write: the label word; the score to the nearest 0.2; an answer; the referent.

    Of several right answers of ReCoRD it is the first.

    Raises:
        ValueError: the example has no label, or none that a model can be taught.
    """
    if task.name == "wsc":
        return example.texts["referent"]
    if task.name == "record" and example.answers:
        return _one_line(example.answers[0])
    if example.label is None:
        raise ValueError(f"got example {example.id} of {task.name} without label; expected one with its label")
    if not task.labels:
        return f"{round(example.label * 5) / 5:.1f}"
    return task.labels[int(example.label)]


def training_pairs(task: BenchmarkTask, examples: Sequence[Example]) -> list[tuple[str, str]]:
    """(prompt, target) to train on.

    A query of ReCoRD is there once for each of its right answers. Of WSC only the examples whose referent is the right
    one are: a model writes whom the pronoun stands for, so the others teach nothing.

    Raises:
        ValueError: an example has no label.
    """
    if task.name == "record":
        return [(prompt(task, example), _one_line(answer)) for example in examples for answer in example.answers]
    if task.name == "wsc":
        examples = [example for example in examples if example.label == 1]
    return [(prompt(task, example), target(task, example)) for example in examples]


def read_label(task: BenchmarkTask, example: Example, text: str) -> int | float | str | None:
    """What `text`, which a model wrote for `example`, means; None where it is no label word, which counts as wrong.

    For tasks with classes it is the class, and the text has to be the label word and nothing else. For STS-B it is the
    score, a number from 0 to 5. For WSC the class is whether the text names the referent of the example; a text
    without a word names nobody, and is no label. For ReCoRD it is the answer, the text itself.
    """
    text = _one_line(text)
    if task.name == "record":
        return text
    if task.name == "wsc":
        return int(_same_referent(text, example.texts["referent"])) if _words(text) else None
    if task.labels:
        return task.labels.index(text) if text in task.labels else None
    if not re.fullmatch(r"\d+(\.\d*)?", text, re.ASCII) or float(text) > _HIGHEST_SCORE:
        return None
    return float(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _clean(name: str, text: str) -> str:
    """Without the mark-up of MultiRC, and with ReCoRD's highlights as sentences."""
    if name == "multirc":
        return re.sub(r"</?b>", "", text.replace("<br>", " "))
    if name == "record":
        text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", text)
        return text.replace("\n@highlight\n", ". ")
    return text


def _words(text: str) -> set[str]:
    """Case and determiners aside."""
    return {*text.lower().split()} - _DETERMINERS


def _same_referent(text: str, referent: str) -> bool:
    """Whether the words of one are among the words of the other, case and determiners aside.

    A possessive is another referent: "Bob" is not "Bob's hat".
    """
    words, wanted = _words(text), _words(referent)
    if any("'" in word for word in words) != any("'" in word for word in wanted):
        return False
    return bool(words and wanted) and (words <= wanted or wanted <= words)


@dataclass(frozen=True)
class Mixture:
    """Examples of several tasks in proportion to their number, that of no task counted beyond a cap.

    Of e_m examples of task m an epoch has min(e_m, cap), so the rate of the task is min(e_m, cap) / Σ min(e_n, cap).
    That is T5's examples-proportional mixing; T5 draws tasks at these rates, here every epoch has them exactly. A
    capped task goes on in the next epoch where it stopped, until all of its examples were seen. RTE is in both suites,
    with the same examples: where both are there, each counts half, as in T5.

    Args:
        sizes: examples of each task, by its name with the suite.
        cap: the most that count of one task.
        seed: of the order; an epoch is a function of it and of its number alone.
    """

    sizes: Mapping[str, int]
    cap: int = DEFAULT_CAP
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise ValueError(f"got cap={self.cap}; expected at least 1")
        if not self.sizes or min(self.sizes.values()) < 1:
            raise ValueError(f"got sizes {dict(self.sizes)}; expected at least one task, and an example of each")

    def counts(self) -> dict[str, int]:
        """Examples of each task in an epoch."""
        counts = {task: min(size, self.cap) for task, size in self.sizes.items()}
        if counts.keys() >= _TWICE:
            # Of an odd number the larger half.
            counts |= {task: (counts[task] + 1) // 2 for task in _TWICE}
        return counts

    def rates(self) -> dict[str, float]:
        """Share of each task in an epoch."""
        counts = self.counts()
        total = sum(counts.values())
        return {task: count / total for task, count in counts.items()}

    def epoch(self, number: int) -> list[tuple[str, int]]:
        """Task and row of every example of epoch `number`, from 0, in its order."""
        drawn = [
            (task, int(row))
            for index, (task, count) in enumerate(self.counts().items())
            for row in self._rows(index, self.sizes[task], count, number)
        ]
        order = np.random.default_rng([self.seed, number]).permutation(len(drawn))
        return [drawn[place] for place in order]

    def _rows(self, index: int, size: int, count: int, number: int) -> np.ndarray:
        """`count` rows from place `count` × `number` of one endless sequence of permutations of the task's rows."""
        start = count * number
        rounds = range(start // size, (start + count - 1) // size + 1)
        rows = [np.random.default_rng([self.seed, index, turn, 1]).permutation(size) for turn in rounds]
        offset = start - rounds.start * size
        return np.concatenate(rows)[offset : offset + count]
