"""The results of a comparison, as results.json has them: what its runs share, every run, every row over its seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import UserError, damage_reported
from ..tasks.base import larger_is_better, tokens_name
from ..training.settings import parse_synthesizer
from .plan import Plan

FINISHED, FAILED, PENDING = "finished", "failed", "pending"
# The entries that depend on the runs of a comparison; those of a row that do not.
_OF_RUNS = {"rows", "runs", "bootstrap", "from"}
_OF_ROW = ("synthesizer", "overrides", "match", "d_ff", "parameters")
SPEEDS = ("tokens_per_second", "minutes", "steps")
# Smaller values of these scores are better, whichever score selects the checkpoint.
_SMALLER = {"bits_per_byte", "invalid", "loss", "perplexity", "word_perplexity"}
Results = Mapping[str, Any]
# A group and the name of a score in it.
Score = tuple[str, str]


def with_status(results: Results, status: str) -> list[Results]:
    """The runs with this status."""
    return [run for run in results["runs"] if run["status"] == status]


def reference_row(results: Results) -> str:
    """The row that the others are compared with: vanilla, or the first."""
    rows = [str(row["row"]) for row in results["rows"]]
    return "vanilla" if "vanilla" in rows else rows[0]


def run_scores(results: Results, run: Results) -> dict[Score, float]:
    """The numbers of a finished run. The groups are "", for speeds, "validation", "last", and the splits."""
    groups = {
        "": {name: run["metrics"][name] for name in SPEEDS},
        **{group: run[group]["scores"] for group in ("validation", "last")},
        **{split: run["tests"][split]["scores"] for split in results["tests"]},
    }
    return {(group, name): value for group, scores in groups.items() for name, value in scores.items()}


def column(results: Results, score: Score) -> pd.Series:
    """The values of a score, by row and seed."""
    found = {(run["row"], run["seed"]): run_scores(results, run) for run in with_status(results, FINISHED)}
    index = pd.MultiIndex.from_tuples(found, names=["row", "seed"])
    return pd.Series([scores.get(score) for scores in found.values()], index, dtype=float).dropna()


def decimals(values: pd.Series) -> int:
    """The decimals to print of a score, a `column`."""
    return 2 if values.groupby(level="row").mean().abs().max() >= 10 else 3


def is_smaller_better(results: Results, name: str) -> bool:
    """Whether smaller values of a score are better."""
    return name in _SMALLER or (name == results["selected_by"] and not results["larger_is_better"])


def read_results(folder: Path) -> dict[str, Any]:
    """The content of results.json; without rows and runs if there is no such file."""
    path = folder / "results.json"
    if not path.exists():
        return {"rows": [], "runs": []}
    with damage_reported(path):
        return dict(json.loads(path.read_text(encoding="utf-8")))


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
                "d_ff": d_ff,
                "parameters": parameters,
                **over_seeds([run for run in runs if run["row"] == row.label], tests),
            }
            for row, (parameters, d_ff) in plan.sizes.items()
        ],
        "runs": [dict(run) for run in runs],
        "bootstrap": [],
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
        "rows": [{**rows[label], **over_seeds(own[label], later["tests"])} for label in labels],
        "runs": [run for label in labels for run in own[label]],
        "bootstrap": sorted([*tests, *later["bootstrap"]], key=lambda test: (test["rows"], test["seed"])),
    }


def over_seeds(runs: Sequence[Results], splits: Iterable[str]) -> dict[str, Any]:
    """The seeds of a row by their status; mean, sample standard deviation and number of each score.

    "last" is of the last step, not of the selected checkpoint. Some runs may lack a score.
    """
    groups: dict[str, Any] = {group: {} for group in ("validation", "last", *splits)}
    groups[""] = dict.fromkeys(SPEEDS)
    results = {"runs": runs, "tests": splits}
    for score in dict.fromkeys(chain(*(run_scores(results, run) for run in with_status(results, FINISHED)))):
        mean, sd, count = column(results, score).agg(["mean", "std", "count"])
        if count:
            groups[score[0]][score[1]] = {"mean": mean, "sd": None if math.isnan(sd) else sd, "n": int(count)}
    statuses = (FINISHED, FAILED, PENDING)
    return {
        "seeds": [run["seed"] for run in runs],
        **{status: [run["seed"] for run in runs if run["status"] == status] for status in statuses},
        **groups[""],
        **{group: groups[group] for group in ("validation", "last")},
        "tests": {split: groups[split] for split in splits},
    }
