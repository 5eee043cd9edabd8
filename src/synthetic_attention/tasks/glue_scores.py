"""The official scores and the predictions file of GLUE and SuperGLUE from the outputs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..metrics.glue import SUITE_SCORES, glue_scores, record_scores, suite_average, superglue_scores
from .base import Scores
from .glue_data import SUITES, Item, read_label
from .seq2seq import json_lines

_METRICS = {
    "matthews": "MCC",
    "accuracy": "accuracy",
    "accuracy_matched": "matched accuracy",
    "accuracy_mismatched": "mismatched accuracy",
    "f1": "F1",
    "f1a": "F1a",
    "exact_match": "EM",
    "pearson": "Pearson",
    "spearman": "Spearman",
}


def _labels() -> dict[str, str]:
    labels = {"average": "average", "glue_average": "GLUE", "superglue_average": "SuperGLUE"}
    for suite, tasks in SUITE_SCORES.items():
        for task, metrics in {**tasks, **({"wnli": ("accuracy",)} if suite == "glue" else {})}.items():
            # RTE is in both suites.
            title = "SuperGLUE RTE" if (suite, task) == ("superglue", "rte") else SUITES[suite][task].folder
            labels |= {f"{suite}_{task}_{metric}": f"{title} {_METRICS[metric]}" for metric in metrics}
    return {**labels, "invalid": "no label"}


# The titles of all scores.
SCORE_LABELS: Mapping[str, str] = _labels()


def suite_scores(items: Sequence[Item], outputs: Sequence[str], suites: Sequence[str] = ()) -> Scores:
    """The official scores of every task in percent, and the averages of the suites over the tasks that have outputs.

    Names are "glue_cola_matthews", "glue_mnli_accuracy_matched", "superglue_cb_f1", …. "glue_average" has a signature
    with its tasks, and "glue_missing" lists the tasks without outputs. "average" is the mean of the averages of the
    suites, or the mean of all scores if no task counts in a suite's average, like WNLI. "invalid" counts the outputs
    that are not labels, "glue_cola_invalid" those of a task.

    Args:
        items: examples with labels.
        suites: the suites that the run may have tasks of; by default those of the items.

    Raises:
        UserError: scikit-learn or scipy is not installed.
    """
    by_suite: dict[str, dict[str, dict[str, float]]] = {}
    groups: dict[tuple[str, str, str], list[tuple[Item, str]]] = {}
    for item, text in zip(items, outputs, strict=True):
        if item.is_labeled:
            groups.setdefault((item.suite, item.task, item.subset), []).append((item, text))
    for (suite, task, subset), pairs in groups.items():
        found = _task_scores(suite, task, pairs)
        scores = by_suite.setdefault(suite, {}).setdefault(task, {"invalid": 0})
        scores["invalid"] += found.pop("invalid")
        scores |= {f"{name}_{subset}" if subset else name: value for name, value in found.items()}
    result: Scores = {}
    averages: dict[str, float] = {}
    for suite in dict.fromkeys([*suites, *by_suite]):
        tasks = by_suite.get(suite, {})
        average = suite_average(suite, tasks)
        missing = ", ".join(average.missing) or "none"
        if average.value is not None:
            averages[suite] = average.value
            counted = ", ".join(task for task in tasks if task in SUITE_SCORES[suite])
            result[f"{suite}_average"] = average.value
            result[f"{suite}_average_signature"] = f"mean of {counted}; missing: {missing}"
        result[f"{suite}_missing"] = missing
        result |= {f"{suite}_{task}_{name}": value for task, mine in tasks.items() for name, value in mine.items()}
    of_tasks = [scores for tasks in by_suite.values() for scores in tasks.values()]
    others = [value for scores in of_tasks for name, value in scores.items() if name != "invalid"]
    if averages:
        signature = f"mean of {', '.join(f'{suite}_average' for suite in averages)}"
        result = {"average": sum(averages.values()) / len(averages), "average_signature": signature, **result}
    elif others:
        result = {"average": sum(others) / len(others), "average_signature": "mean of all scores", **result}
    # A float, because only floats are logged.
    result["invalid"] = float(sum(scores["invalid"] for scores in of_tasks))
    return result


def prediction_lines(items: Sequence[Item], outputs: Sequence[str]) -> str:
    """JSON lines with task and id, gold and prediction, and the score of each example.

    `gold` and `predicted` are label words; scores for STS-B; for ReCoRD the correct answers and the text. `predicted`
    is null if the output `text` is not a label, `gold` if the label is hidden. `score` is 1 or 0, F1 for ReCoRD, and
    null for STS-B, whose scores are correlations. `group` is the question of MultiRC.
    """
    return json_lines(_prediction(item, text) for item, text in zip(items, outputs, strict=True))


def _prediction(item: Item, text: str) -> dict[str, Any]:
    label, gold = read_label(item.layout, item.example, text), item.example.label
    score = None
    if item.task == "record":
        score = record_scores([text], [item.example.answers])["f1"] / 100 if item.example.answers else None
    elif gold is not None and item.layout.labels:
        score = float(label == gold)
    return {
        "task": item.owner,
        **({"subset": item.subset} if item.subset else {}),
        "id": item.example.id,
        **({"group": item.example.group} if item.example.group else {}),
        "gold": (list(item.example.answers) or None) if item.task == "record" else _word(item, gold),
        "predicted": _word(item, label),
        "text": text,
        "score": score,
    }


def _word(item: Item, label: int | float | str | None) -> int | float | str | None:
    """The label word of a class."""
    return item.layout.labels[int(label)] if item.layout.labels and label is not None else label


def _task_scores(suite: str, task: str, pairs: Sequence[tuple[Item, str]]) -> dict[str, float]:
    examples = [item.example for item, _ in pairs]
    predictions: list[Any] = [read_label(item.layout, item.example, text) for item, text in pairs]
    golds: list[Any] = [example.answers if task == "record" else example.label for example in examples]
    if suite == "glue":
        return glue_scores(task, predictions, golds)
    return superglue_scores(task, predictions, golds, [example.group for example in examples])
