"""The averages of GLUE and SuperGLUE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BENCHMARK_SCORES", "Average", "benchmark_average"]

# The scores of each task that count. WNLI does not: neither the paper nor T5 has it in the average.
BENCHMARK_SCORES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
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
class Average:
    """An average, and what it lacks.

    Args:
        value: None where no task is there.
        missing: tasks ("qqp") and scores ("mnli accuracy_mismatched") that were not there to be averaged.
    """

    value: float | None
    missing: tuple[str, ...]


def benchmark_average(benchmark: str, scores: Mapping[str, Mapping[str, float]]) -> Average:
    """The mean over tasks of the mean of each task's scores, as in the last column of the leaderboards.

    Args:
        benchmark: "glue" or "superglue".
        scores: by task, then by name; what does not count is left aside.

    Returns:
        The average over what is there, with what is not.
    """
    means, missing = [], []
    for task, names in BENCHMARK_SCORES[benchmark].items():
        there = [scores[task][name] for name in names if name in scores.get(task, {})]
        if there:
            means.append(sum(there) / len(there))
            missing += [f"{task} {name}" for name in names if name not in scores[task]]
        else:
            missing.append(task)
    return Average(sum(means) / len(means) if means else None, tuple(missing))
