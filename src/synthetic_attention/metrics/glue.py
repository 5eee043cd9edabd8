"""Metrics of GLUE and SuperGLUE and their averages, with scikit-learn and scipy.

A prediction is a class, a score, or None for a text that is not a label. None counts as wrong: for F1 it is the other
class, for STS-B the end of the scale that is farther from the gold score, for Matthews correlation a class of its own,
as in T5, so that a model that never writes a label has 0, not −1.
"""

from __future__ import annotations

import re
import string
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import require
from .text import check_pairs, check_references

_Predictions = Sequence[int | float | None]
_Golds = Sequence[int | float]
_PUNCTUATION = str.maketrans("", "", string.punctuation)

# The scores of each task that count in the average. WNLI does not: neither the paper nor T5 includes it.
SUITE_SCORES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "glue": {
        "cola": ("matthews",),
        "sst2": ("accuracy",),
        "mrpc": ("f1", "accuracy"),
        "stsb": ("pearson", "spearman"),
        "qqp": ("f1", "accuracy"),
        "mnli": ("accuracy_matched", "accuracy_mismatched"),
        "qnli": ("accuracy",),
        "rte": ("accuracy",),
    },
    "superglue": {
        "boolq": ("accuracy",),
        "cb": ("f1", "accuracy"),
        "copa": ("accuracy",),
        "multirc": ("f1a", "exact_match"),
        "record": ("f1", "exact_match"),
        "rte": ("accuracy",),
        "wic": ("accuracy",),
        "wsc": ("accuracy",),
    },
}


@dataclass(frozen=True)
class SuiteAverage:
    """An average, None if there is no task, and the tasks ("qqp") and scores ("mnli accuracy_mismatched") it lacks."""

    value: float | None
    missing: tuple[str, ...]


def suite_average(suite: str, scores: Mapping[str, Mapping[str, float]]) -> SuiteAverage:
    """The mean over tasks of the mean of each task's scores, as on the leaderboards."""
    means, missing = [], []
    for task, names in SUITE_SCORES[suite].items():
        found = [scores[task][name] for name in names if name in scores.get(task, {})]
        if found:
            means.append(sum(found) / len(found))
            missing += [f"{task} {name}" for name in names if name not in scores[task]]
        else:
            missing.append(task)
    return SuiteAverage(sum(means) / len(means) if means else None, tuple(missing))


def glue_scores(task: str, predictions: _Predictions, golds: _Golds) -> dict[str, float]:
    """The official metrics of a GLUE task, in percent, and `invalid`: the number of predictions that are not labels."""
    check_pairs(predictions, golds)
    scores: dict[str, float]
    if task == "stsb":
        scores = pearson_spearman(predictions, golds)
    elif task == "cola":
        scores = {"matthews": matthews(predictions, golds)}
    else:
        scores = {"accuracy": accuracy(predictions, golds)}
        if task in ("mrpc", "qqp"):
            scores["f1"] = f1(predictions, golds)
    return {**scores, "invalid": sum(prediction is None for prediction in predictions)}


def superglue_scores(
    task: str, predictions: Sequence[Any], golds: Sequence[Any], groups: Sequence[str] = ()
) -> dict[str, float]:
    """The official metrics of a SuperGLUE task, as `glue_scores`; `groups` are the questions of "multirc"."""
    if task == "record":
        scores = record_scores(predictions, golds)
    elif task == "multirc":
        scores = multirc_scores(predictions, golds, groups)
    else:
        scores = {"accuracy": accuracy(predictions, golds)}
    if task == "cb":
        scores["f1"] = macro_f1(predictions, golds, classes=3)
    return {**scores, "invalid": sum(prediction is None for prediction in predictions)}


def accuracy(predictions: _Predictions, golds: _Golds) -> float:
    """The percentage of correct predictions."""
    check_pairs(predictions, golds)
    return 100 * sum(guess == gold for guess, gold in zip(predictions, golds, strict=True)) / len(golds)


def f1(predictions: _Predictions, golds: _Golds) -> float:
    """F1 of class 1 in percent; 0 if class 1 does not occur."""
    check_pairs(predictions, golds)
    filled = [1 - gold if guess is None else guess for guess, gold in zip(predictions, golds, strict=True)]
    return 100 * float(require("sklearn.metrics", "glue", "F1").f1_score(golds, filled, zero_division=0))


def macro_f1(predictions: Sequence[int | None], golds: Sequence[int], classes: int) -> float:
    """The mean of the F1 of each class in percent; 0 for a class that does not occur. None belongs to no class."""
    check_pairs(predictions, golds)
    filled = [-1 if guess is None else guess for guess in predictions]
    metrics = require("sklearn.metrics", "glue", "F1")
    return 100 * float(metrics.f1_score(golds, filled, labels=[*range(classes)], average="macro", zero_division=0))


def matthews(predictions: _Predictions, golds: _Golds) -> float:
    """Matthews correlation in percent; 0 if one side has only one class."""
    check_pairs(predictions, golds)
    filled = [-1 if guess is None else guess for guess in predictions]
    return 100 * float(require("sklearn.metrics", "glue", "Matthews correlation").matthews_corrcoef(golds, filled))


def pearson_spearman(predictions: _Predictions, golds: _Golds) -> dict[str, float]:
    """Both correlations in percent, on the scale 0 … 5 of STS-B; 0 if one side is constant."""
    check_pairs(predictions, golds)
    filled = [
        (0.0 if gold > 2.5 else 5.0) if guess is None else guess for guess, gold in zip(predictions, golds, strict=True)
    ]
    if len({*filled}) == 1 or len({*golds}) == 1:
        return {"pearson": 0.0, "spearman": 0.0}
    stats = require("scipy.stats", "glue", "correlation")
    return {
        "pearson": 100 * float(stats.pearsonr(golds, filled).statistic),
        "spearman": 100 * float(stats.spearmanr(golds, filled).statistic),
    }


def multirc_scores(predictions: Sequence[int | None], golds: Sequence[int], groups: Sequence[str]) -> dict[str, float]:
    """MultiRC: F1 over all answers (`f1a`), percentage of questions with every answer correct (`exact_match`)."""
    check_pairs(predictions, golds)
    check_pairs(predictions, groups)
    correct: dict[str, bool] = defaultdict(lambda: True)
    for guess, gold, group in zip(predictions, golds, groups, strict=True):
        correct[group] &= guess == gold
    return {"f1a": f1(predictions, golds), "exact_match": 100 * sum(correct.values()) / len(correct)}


def record_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """ReCoRD: F1 of words and exact match, each the best over the correct answers, averaged over queries.

    Texts are compared as in SQuAD: without case, ASCII punctuation and the articles a, an, the.
    """
    check_references(predictions, answers)
    pairs = [
        (_words(guess), [_words(answer) for answer in several])
        for guess, several in zip(predictions, answers, strict=True)
    ]
    return {
        "f1": 100 * sum(max(_overlap(guess, answer) for answer in several) for guess, several in pairs) / len(pairs),
        "exact_match": 100 * sum(guess in several for guess, several in pairs) / len(pairs),
    }


def _words(text: str) -> list[str]:
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()


def _overlap(guess: Sequence[str], answer: Sequence[str]) -> float:
    """F1 of two bags of words."""
    shared = sum((Counter(guess) & Counter(answer)).values())
    return 2 * shared / (len(guess) + len(answer)) if shared else 0.0
