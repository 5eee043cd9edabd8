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
from statistics import fmean
from typing import Any

from ..data.glue import SUITES
from ..errors import require

_Predictions = Sequence[int | float | None]
_Golds = Sequence[int | float]
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def suite_average(suite: str, scores: Mapping[str, Sequence[float]]) -> tuple[float, str]:
    """The mean over tasks of the mean of the scores of each, and which tasks these are.

    WNLI does not count: neither the paper nor T5 includes it.
    """
    counted = [task for task in SUITES[suite] if task != "wnli"]
    means = {task: fmean(scores[task]) for task in counted if task in scores}
    missing = ", ".join(task for task in counted if task not in means) or "none"
    return fmean(means.values()), f"mean of {', '.join(means)}; missing: {missing}"


def task_scores(
    task: str, predictions: Sequence[Any], golds: Sequence[Any], groups: Sequence[str] = ()
) -> dict[str, float]:
    """The official metrics of a task of GLUE or SuperGLUE in percent.

    `groups` are the questions of the answers of MultiRC.
    """
    match task:
        case "stsb":
            return pearson_spearman(predictions, golds)
        case "cola":
            return {"matthews": matthews(predictions, golds)}
        case "record":
            return record_scores(predictions, golds)
        case "multirc":
            return multirc_scores(predictions, golds, groups)
        case "mrpc" | "qqp":
            return {"accuracy": accuracy(predictions, golds), "f1": f1(predictions, golds)}
        case "cb":
            return {"accuracy": accuracy(predictions, golds), "f1": macro_f1(predictions, golds, classes=3)}
    return {"accuracy": accuracy(predictions, golds)}


def accuracy(predictions: _Predictions, golds: _Golds) -> float:
    """The percentage of correct predictions."""
    return 100 * fmean(guess == gold for guess, gold in zip(predictions, golds, strict=True))


def f1(predictions: _Predictions, golds: _Golds) -> float:
    """F1 of class 1 in percent; 0 if class 1 does not occur."""
    filled = [1 - gold if guess is None else guess for guess, gold in zip(predictions, golds, strict=True)]
    return 100 * float(require("sklearn.metrics", "glue", "F1").f1_score(golds, filled, zero_division=0))


def macro_f1(predictions: Sequence[int | None], golds: Sequence[int], classes: int) -> float:
    """The mean of the F1 of each class in percent; 0 for a class that does not occur. None belongs to no class."""
    filled = [-1 if guess is None else guess for guess in predictions]
    metrics = require("sklearn.metrics", "glue", "F1")
    return 100 * float(metrics.f1_score(golds, filled, labels=[*range(classes)], average="macro", zero_division=0))


def matthews(predictions: _Predictions, golds: _Golds) -> float:
    """Matthews correlation in percent; 0 if one side has only one class."""
    filled = [-1 if guess is None else guess for guess in predictions]
    return 100 * float(require("sklearn.metrics", "glue", "Matthews correlation").matthews_corrcoef(golds, filled))


def pearson_spearman(predictions: _Predictions, golds: _Golds) -> dict[str, float]:
    """Both correlations in percent, on the scale 0 … 5 of STS-B; 0 if one side is constant."""
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
    correct: dict[str, bool] = defaultdict(lambda: True)
    for guess, gold, group in zip(predictions, golds, groups, strict=True):
        correct[group] &= guess == gold
    return {"f1a": f1(predictions, golds), "exact_match": 100 * fmean(correct.values())}


def record_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """ReCoRD: F1 of words and exact match, each the best over the correct answers, averaged over queries.

    Texts are compared as in SQuAD: without case, ASCII punctuation and the articles a, an, the.
    """
    f1s, exact = [], []
    for guess, several in zip(map(_words, predictions), answers, strict=True):
        golds = [*map(_words, several)]
        f1s.append(max(_overlap(guess, gold) for gold in golds))
        exact.append(guess in golds)
    return {"f1": 100 * fmean(f1s), "exact_match": 100 * fmean(exact)}


def _words(text: str) -> list[str]:
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()


def _overlap(guess: Sequence[str], answer: Sequence[str]) -> float:
    """F1 of two bags of words."""
    shared = sum((Counter(guess) & Counter(answer)).values())
    return 2 * shared / (len(guess) + len(answer)) if shared else 0.0
