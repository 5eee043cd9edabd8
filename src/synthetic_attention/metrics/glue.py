"""GLUE's metrics: Matthews correlation, F1, accuracy, Pearson and Spearman; scikit-learn's and scipy's.

A prediction is a class, a score, or None: a text that is no label. It counts as wrong: for accuracy that is all. For
F1 it is the other class, and for STS-B the end of the scale that is farther from the gold score. For Matthews
correlation it is a class of its own, as in T5: a model that never writes a label has 0 and not −1.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..tasks.extras import require
from .checks import check_pairs

__all__ = ["accuracy", "f1", "glue_scores", "matthews", "pearson_spearman"]

# The scale of STS-B.
_LOWEST, _HIGHEST = 0.0, 5.0


def glue_scores(task: str, predictions: Sequence[int | float | None], golds: Sequence[int | float]) -> dict[str, float]:
    """The official metrics of a task, in percent, and `invalid`: how many predictions are no label.

    Args:
        task: a key of `readers.glue.GLUE`.
        predictions, golds: classes, or scores for "stsb".

    Raises:
        UserError: scikit-learn or scipy is not installed.
        ValueError: not as many predictions as golds, or none.
    """
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


def accuracy(predictions: Sequence[int | float | None], golds: Sequence[int | float]) -> float:
    """Share of right predictions in percent.

    Raises:
        ValueError: not as many predictions as golds, or none.
    """
    check_pairs(predictions, golds)
    return 100 * sum(guess == gold for guess, gold in zip(predictions, golds, strict=True)) / len(golds)


def f1(predictions: Sequence[int | float | None], golds: Sequence[int | float]) -> float:
    """F1 of class 1 in percent, no label counted as the class that is not right; 0 where class 1 is nowhere.

    Raises:
        UserError: scikit-learn is not installed.
        ValueError: not as many predictions as golds, or none.
    """
    check_pairs(predictions, golds)
    filled = [1 - gold if guess is None else guess for guess, gold in zip(predictions, golds, strict=True)]
    return 100 * float(require("sklearn.metrics", "glue", "F1").f1_score(golds, filled, zero_division=0))


def matthews(predictions: Sequence[int | float | None], golds: Sequence[int | float]) -> float:
    """Matthews correlation in percent, where no label is a class of its own; 0 where one side is all of one class.

    Raises:
        UserError: scikit-learn is not installed.
        ValueError: not as many predictions as golds, or none.
    """
    check_pairs(predictions, golds)
    filled = [-1 if guess is None else guess for guess in predictions]
    return 100 * float(require("sklearn.metrics", "glue", "Matthews correlation").matthews_corrcoef(golds, filled))


def pearson_spearman(predictions: Sequence[int | float | None], golds: Sequence[int | float]) -> dict[str, float]:
    """Both correlations in percent; 0 where one side is constant, as a single point is, and so correlated with nothing.

    Raises:
        UserError: scipy is not installed.
        ValueError: not as many predictions as golds, or none.
    """
    check_pairs(predictions, golds)
    middle = (_LOWEST + _HIGHEST) / 2
    filled = [
        (_LOWEST if gold > middle else _HIGHEST) if guess is None else guess
        for guess, gold in zip(predictions, golds, strict=True)
    ]
    if len({*filled}) == 1 or len({*golds}) == 1:
        return {"pearson": 0.0, "spearman": 0.0}
    stats = require("scipy.stats", "glue", "correlation")
    return {
        "pearson": 100 * float(stats.pearsonr(golds, filled).statistic),
        "spearman": 100 * float(stats.spearmanr(golds, filled).statistic),
    }
