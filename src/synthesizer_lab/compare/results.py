"""The results of a comparison, as results.json has them: what its runs share, every run, every row over its seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..errors import UserError, damage_reported
from ..tasks.base import larger_is_better, tokens_name
from ..training.settings import parse_synthesizer

if TYPE_CHECKING:
    from .plan import Plan

FINISHED, FAILED, PENDING = "finished", "failed", "pending"
# What belongs to the runs of a comparison, and what to a row whichever its runs are.
_OF_RUNS = {"rows", "runs", "warnings", "bootstrap", "from"}
_OF_ROW = ("synthesizer", "overrides", "match", "d_ff", "parameters")
_SPEEDS = ("tokens_per_second", "minutes", "steps")
Results = Mapping[str, Any]
# A group and the name of a score in it.
Score = tuple[str, str]


def with_status(results: Results, status: str) -> list[Results]:
    """The runs with this status."""
    return [run for run in results["runs"] if run["status"] == status]


def measurements(results: Results) -> pd.DataFrame:
    """The numbers of the finished runs: a line for each row and seed, a column for each group and score.

    The groups are "", for speeds, "validation", "last", and the splits.
    """
    lines = {}
    for run in with_status(results, FINISHED):
        groups = {
            "": {name: run["metrics"][name] for name in _SPEEDS},
            **{group: run[group]["scores"] for group in ("validation", "last")},
            **{split: run["tests"][split]["scores"] for split in results["tests"]},
        }
        line = {(group, name): value for group, scores in groups.items() for name, value in scores.items()}
        lines[run["row"], run["seed"]] = line
    columns = pd.MultiIndex.from_tuples(dict.fromkeys(chain(*lines.values())), names=["group", "score"])
    index = pd.MultiIndex.from_tuples(lines, names=["row", "seed"])
    return pd.DataFrame([*lines.values()], index=index, columns=columns, dtype=float)


def column(numbers: pd.DataFrame, score: Score) -> pd.Series:
    """A column of `measurements`; without numbers if no run has the score."""
    return numbers[score] if score in numbers else pd.Series(float("nan"), numbers.index)


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """The runs in results.json; none if the file is missing or damaged, so that all are scored again."""
    with suppress(UserError), damage_reported(folder):
        runs = json.loads((folder / "results.json").read_text(encoding="utf-8"))["runs"]
        return [run for run in runs if {"row", "seed"} <= run.keys()]
    return []


def make_results(plan: Plan, runs: Sequence[Results]) -> dict[str, Any]:
    """The content of results.json."""
    task, training = plan.comparison.task, plan.settings["training"]
    tests = {split.name: split.fingerprint() for split in plan.tests.values()}
    return {
        "task": task.name,
        "options": asdict(task),
        "data": plan.fingerprints,
        "tokenizer": plan.tokenizer,
        "from": plan.comparison.source and str(Path(plan.comparison.source).absolute()),
        "settings": plan.settings,
        "budget": {"steps": max(training["max_steps"], 0) or None, "minutes": training["minutes"]},
        "score_labels": dict(task.score_labels),
        "selected_by": task.metric_for_best_model,
        "larger_is_better": larger_is_better(task),
        "tokens": tokens_name(task),
        "tests": tests,
        "generation": plan.generation,
        "rows": [
            {
                "row": row.label,
                "synthesizer": parse_synthesizer(row.synthesizer),
                "overrides": list(row.overrides),
                "match": row.match,
                "d_ff": plan.sizes[row].d_ff,
                "parameters": plan.sizes[row].parameters,
                **_over_seeds([run for run in runs if run["row"] == row.label], tests),
            }
            for row in plan.seeds
        ],
        "runs": [dict(run) for run in runs],
    }


def merge(earlier: Results, later: Results, order: Sequence[str]) -> dict[str, Any]:
    """The results of one comparison that was trained in parts, on several machines, say: the runs of both.

    If both have a run, the later one replaces the earlier one, unless it is not finished. The rows are in this order.

    Raises:
        UserError: the conditions of the two differ.
    """
    rows = {row["row"]: row for row in earlier["rows"]}
    different = {name for name in later.keys() - _OF_RUNS if earlier.get(name) != later[name]}
    for row in later["rows"]:
        same = rows.setdefault(row["row"], row)
        different |= {f"{name} of {row['row']}" for name in _OF_ROW if same.get(name) != row.get(name)}
    if different:
        raise UserError(
            f"got results with other {', '.join(sorted(different))} than the saved ones; expected the same conditions. "
            "Remove the saved ones to start again"
        )
    runs, replaced = {(run["row"], run["seed"]): run for run in earlier["runs"]}, set()
    for run in later["runs"]:
        key = run["row"], run["seed"]
        if run["status"] == FINISHED or runs.get(key, run)["status"] != FINISHED:
            runs[key] = run
            replaced.add(key)
    tests = [test for test in earlier["bootstrap"] if not replaced & {(row, test["seed"]) for row in test["rows"]}]
    labels = sorted(rows, key=lambda label: order.index(label) if label in order else len(order))
    own = {label: [runs[key] for key in sorted(runs) if key[0] == label] for label in labels}
    return {
        **later,
        "rows": [{**rows[label], **_over_seeds(own[label], later["tests"])} for label in labels],
        "runs": [run for label in labels for run in own[label]],
        "bootstrap": sorted([*tests, *later["bootstrap"]], key=lambda test: (test["rows"], test["seed"])),
    }


def _over_seeds(runs: Sequence[Results], splits: Iterable[str]) -> dict[str, Any]:
    """The seeds of a row by their status, and its numbers over the finished ones."""
    finished = with_status({"runs": runs}, FINISHED)
    return {
        "seeds": [run["seed"] for run in runs],
        **{name: [run["seed"] for run in runs if run["status"] == name] for name in (FINISHED, FAILED, PENDING)},
        **dict.fromkeys(_SPEEDS),
        **_summaries([{name: run["metrics"][name] for name in _SPEEDS} for run in finished]),
        "validation": _summaries([run["validation"]["scores"] for run in finished]),
        # Of the last step, not of the selected checkpoint.
        "last": _summaries([run["last"]["scores"] for run in finished]),
        "tests": {split: _summaries([run["tests"][split]["scores"] for run in finished]) for split in splits},
    }


def _summaries(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    """Mean, sample standard deviation and number of each score; some runs may lack one."""
    values = {name: [each[name] for each in scores if name in each] for name in dict.fromkeys(chain(*scores))}
    return {
        name: {
            "mean": statistics.fmean(numbers),
            "sd": statistics.stdev(numbers) if len(numbers) > 1 else None,
            "n": len(numbers),
        }
        for name, numbers in values.items()
    }
