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
from typing import Any

from ..data.glue import SUITES
from ..errors import require

_Predictions = Sequence[int | float | None]
_Golds = Sequence[int | float]
_PUNCTUATION = str.maketrans("", "", string.punctuation)

# The scores of each task that count in the average. WNLI does not: neither the paper nor T5 includes it.
SUITE_SCORES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    suite: {
        name: tuple("_".join(filter(None, (metric, part))) for part in task.subsets("valid") for metric in task.metrics)
        for name, task in tasks.items()
        if name != "wnli"
    }
    for suite, tasks in SUITES.items()
}


def task_means(suite: str, scores: Mapping[str, float]) -> dict[str, float]:
    """The mean score of each task that has scores, named "glue_cola_matthews" …; a suite's average is their mean."""
    found = {
        task: [scores[name] for metric in metrics if (name := f"{suite}_{task}_{metric}") in scores]
        for task, metrics in SUITE_SCORES[suite].items()
    }
    return {task: sum(values) / len(values) for task, values in found.items() if values}


def task_scores(
    task: str, predictions: Sequence[Any], golds: Sequence[Any], groups: Sequence[str] = ()
) -> dict[str, float]:
    """The official metrics of a task of GLUE or SuperGLUE in percent, and `invalid`: the predictions that are no label.

    `groups` are the questions of the answers of MultiRC.
    """
    if task == "stsb":
        scores = pearson_spearman(predictions, golds)
    elif task == "cola":
        scores = {"matthews": matthews(predictions, golds)}
    elif task == "record":
        scores = record_scores(predictions, golds)
    elif task == "multirc":
        scores = multirc_scores(predictions, golds, groups)
    else:
        scores = {"accuracy": accuracy(predictions, golds)}
        if task in ("mrpc", "qqp"):
            scores["f1"] = f1(predictions, golds)
        elif task == "cb":
            scores["f1"] = macro_f1(predictions, golds, classes=3)
    return {**scores, "invalid": sum(prediction is None for prediction in predictions)}


def accuracy(predictions: _Predictions, golds: _Golds) -> float:
    """The percentage of correct predictions."""
    return 100 * sum(guess == gold for guess, gold in zip(predictions, golds, strict=True)) / len(golds)


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
    return {"f1a": f1(predictions, golds), "exact_match": 100 * sum(correct.values()) / len(correct)}


def record_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """ReCoRD: F1 of words and exact match, each the best over the correct answers, averaged over queries.

    Texts are compared as in SQuAD: without case, ASCII punctuation and the articles a, an, the.
    """
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
