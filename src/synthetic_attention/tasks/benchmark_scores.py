"""From what a model wrote for examples of GLUE and SuperGLUE to the official scores, and to a file of predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..metrics.averages import BENCHMARK_SCORES, benchmark_average
from ..metrics.glue import glue_scores
from ..metrics.superglue import record_scores, superglue_scores
from .benchmark_split import Item, is_labeled
from .text_to_text import BENCHMARKS, read_label
from .types import Scores

__all__ = ["SCORE_LABELS", "prediction_lines", "suite_scores"]

_SUITES = {"glue": "GLUE", "superglue": "SuperGLUE"}
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
    labels = {"average": "average", **{f"{suite}_average": name for suite, name in _SUITES.items()}}
    for suite, tasks in BENCHMARK_SCORES.items():
        for task, metrics in {**tasks, **({"wnli": ("accuracy",)} if suite == "glue" else {})}.items():
            # RTE is in both.
            title = "SuperGLUE RTE" if (suite, task) == ("superglue", "rte") else BENCHMARKS[suite][task].folder
            labels |= {f"{suite}_{task}_{metric}": f"{title} {_METRICS[metric]}" for metric in metrics}
    return {**labels, "invalid": "no label"}


# How people are shown the scores that there can be, by their names.
SCORE_LABELS: Mapping[str, str] = _labels()


def suite_scores(items: Sequence[Item], texts: Sequence[str], suites: Sequence[str] = ()) -> Scores:
    """The official scores of every task in percent, and the averages of the suites over the tasks that are there.

    They are called "glue_cola_matthews", "glue_mnli_accuracy_matched", "superglue_cb_f1", …. "glue_average" has a
    signature that says of which tasks it is the mean, and "glue_missing" names those that are not there. "average" is
    the mean of the averages of the suites (its signature says of which), or, where no task counts in one, as WNLI, of
    the scores there are. "invalid" counts the texts that are no label, "glue_cola_invalid" those of a task.

    Args:
        items: examples with labels.
        texts: what a model wrote for each.
        suites: those that tasks could have been of; by default those that they are of.

    Raises:
        UserError: scikit-learn or scipy is not installed.
    """
    by_suite: dict[str, dict[str, dict[str, float]]] = {}
    for (suite, task, subset), pairs in _grouped(items, texts).items():
        found = _task_scores(suite, task, pairs)
        mine = by_suite.setdefault(suite, {}).setdefault(task, {"invalid": 0})
        mine["invalid"] += found.pop("invalid")
        mine |= {f"{name}_{subset}" if subset else name: value for name, value in found.items()}
    scores: Scores = {}
    averages: dict[str, float] = {}
    for suite in dict.fromkeys([*suites, *by_suite]):
        tasks = by_suite.get(suite, {})
        average = benchmark_average(suite, tasks)
        missing = ", ".join(average.missing) or "none"
        if average.value is not None:
            averages[suite] = average.value
            counted = ", ".join(task for task in tasks if task in BENCHMARK_SCORES[suite])
            scores[f"{suite}_average"] = average.value
            scores[f"{suite}_average_signature"] = f"mean of {counted}; missing: {missing}"
        scores[f"{suite}_missing"] = missing
        scores |= {f"{suite}_{task}_{name}": value for task, mine in tasks.items() for name, value in mine.items()}
    others = [value for tasks in by_suite.values() for each in tasks.values() for value in _without_invalid(each)]
    if averages:
        signature = f"mean of {', '.join(f'{suite}_average' for suite in averages)}"
        scores = {"average": sum(averages.values()) / len(averages), "average_signature": signature, **scores}
    elif others:
        scores = {"average": sum(others) / len(others), "average_signature": "mean of all scores", **scores}
    # A float, as training logs only those.
    scores["invalid"] = float(sum(each["invalid"] for tasks in by_suite.values() for each in tasks.values()))
    return scores


def prediction_lines(items: Sequence[Item], texts: Sequence[str]) -> str:
    """JSON lines, one for each example: its task and id, what is right, what was predicted, whether that is right.

    `gold` and `predicted` are label words; scores for STS-B; for ReCoRD the right answers and the text. `predicted` is
    null where the `text` that was written is no label, `gold` where the label is hidden. `score` is 1 for right and 0
    for wrong, F1 for ReCoRD, and null for STS-B, whose scores are correlations. `group` is the question of MultiRC.
    """
    return "".join(
        json.dumps(_prediction(item, text), ensure_ascii=False) + "\n" for item, text in zip(items, texts, strict=True)
    )


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
    """A class by its label word."""
    return item.layout.labels[int(label)] if item.layout.labels and label is not None else label


def _grouped(items: Sequence[Item], texts: Sequence[str]) -> dict[tuple[str, str, str], list[tuple[Item, str]]]:
    groups: dict[tuple[str, str, str], list[tuple[Item, str]]] = {}
    for item, text in zip(items, texts, strict=True):
        if is_labeled(item.example):
            groups.setdefault((item.suite, item.task, item.subset), []).append((item, text))
    return groups


def _task_scores(suite: str, task: str, pairs: Sequence[tuple[Item, str]]) -> dict[str, float]:
    examples = [item.example for item, _ in pairs]
    predictions: list[Any] = [read_label(item.layout, item.example, text) for item, text in pairs]
    golds: list[Any] = [example.answers if task == "record" else example.label for example in examples]
    if suite == "glue":
        return glue_scores(task, predictions, golds)
    return superglue_scores(task, predictions, golds, [example.group for example in examples])


def _without_invalid(scores: Mapping[str, float]) -> list[float]:
    return [value for name, value in scores.items() if name != "invalid"]
