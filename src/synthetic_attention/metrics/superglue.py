"""SuperGLUE's metrics, as its authors define them: accuracy, and those of CB, MultiRC and ReCoRD.

A prediction that is no label is None and counts as wrong; `glue.py` says how.
"""

from __future__ import annotations

import re
import string
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from ..tasks.extras import require
from .checks import check_pairs, check_references
from .glue import accuracy, f1

__all__ = ["macro_f1", "multirc_scores", "record_scores", "superglue_scores"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def superglue_scores(
    task: str,
    predictions: Sequence[Any],
    golds: Sequence[Any],
    groups: Sequence[str] = (),
) -> dict[str, float]:
    """The official metrics of a task, in percent, and `invalid`: how many predictions are no label.

    Args:
        task: a key of `readers.superglue.SUPERGLUE`.
        predictions, golds: classes; for "record" answers, and for each the list of right ones.
        groups: the questions of "multirc".

    Raises:
        UserError: scikit-learn is not installed.
        ValueError: not as many predictions as golds (and groups, for "multirc"), or none.
    """
    if task == "record":
        scores = record_scores(predictions, golds)
    elif task == "multirc":
        scores = multirc_scores(predictions, golds, groups)
    else:
        scores = {"accuracy": accuracy(predictions, golds)}
    if task == "cb":
        scores["f1"] = macro_f1(predictions, golds, classes=3)
    return {**scores, "invalid": sum(prediction is None for prediction in predictions)}


def macro_f1(predictions: Sequence[int | None], golds: Sequence[int], classes: int) -> float:
    """Mean of the F1 of each class in percent; 0 for a class that is nowhere. No label is of no class.

    Raises:
        UserError: scikit-learn is not installed.
        ValueError: not as many predictions as golds, or none.
    """
    check_pairs(predictions, golds)
    filled = [-1 if guess is None else guess for guess in predictions]
    metrics = require("sklearn.metrics", "glue", "F1")
    return 100 * float(metrics.f1_score(golds, filled, labels=[*range(classes)], average="macro", zero_division=0))


def multirc_scores(predictions: Sequence[int | None], golds: Sequence[int], groups: Sequence[str]) -> dict[str, float]:
    """MultiRC: F1 over all answers (`f1a`), and the share of questions of which every answer is right (`exact_match`).

    Args:
        groups: the question of each answer.

    Raises:
        UserError: scikit-learn is not installed.
        ValueError: not as many predictions as golds and groups, or none.
    """
    check_pairs(predictions, golds)
    check_pairs(predictions, groups)
    right: dict[str, bool] = defaultdict(lambda: True)
    for guess, gold, group in zip(predictions, golds, groups, strict=True):
        right[group] &= guess == gold
    return {"f1a": f1(predictions, golds), "exact_match": 100 * sum(right.values()) / len(right)}


def record_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """ReCoRD: F1 of words and exact match, each the best over the right answers, averaged over queries.

    Texts are compared as in SQuAD: without case, punctuation (ASCII's) and the articles a, an, the.

    Args:
        answers: the right ones, of each query.

    Raises:
        ValueError: not as many predictions as lists of answers, none, or a query without answer.
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
    """F1 of two bags of words; 0 where they share none."""
    shared = sum((Counter(guess) & Counter(answer)).values())
    return 2 * shared / (len(guess) + len(answer)) if shared else 0.0
