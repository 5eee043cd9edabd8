"""From runs to rows: means and sample standard deviations over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..training.settings import parse_synthesizer
from .plan import Plan

__all__ = ["FAILED", "FINISHED", "PENDING", "make_results", "summarize"]

# What becomes of a run: all done; given up for a reason that is with it; not done yet.
FINISHED, FAILED, PENDING = "finished", "failed", "pending"
# The row that others are compared with.
_BASELINE = "vanilla"
_SPEEDS = ("tokens_per_second", "minutes", "steps")
Entry = Mapping[str, Any]


def make_results(plan: Plan, runs: Sequence[Entry]) -> dict[str, Any]:
    """What results.json has: what the runs share, every row over its seeds, every run.

    Args:
        runs: an entry for each seed of each row of the plan, with `row` (its label), `seed`, `status`, and, where it
            is finished, `metrics`, `validation` and, by split, `tests`; of these each has `scores` by name.
    """
    by_row = {row: [run for run in runs if run["row"] == row.label] for row in plan.seeds}
    baseline = next((mine for row, mine in by_row.items() if row.label == _BASELINE), None)
    task, training = plan.shared.task, plan.settings["training"]
    return {
        "task": task.name,
        "options": task.options(),
        "data": plan.fingerprints,
        "tokenizer": plan.tokenizer,
        "from": None if plan.sources is None else plan.sources.where,
        "settings": plan.settings,
        "budget": {name: training[name] for name in ("steps", "minutes")},
        "score_labels": dict(task.score_labels),
        "selected_by": task.selects_by,
        "larger_is_better": task.larger_is_better,
        "tokens": task.tokens_name,
        "tests": {part.name: part.fingerprint for part in plan.tests},
        "search": plan.search,
        "baseline": _BASELINE if baseline is not None else None,
        "rows": [
            {
                "row": row.label,
                "synthesizer": parse_synthesizer(row.synthesizer),
                "overrides": list(row.overrides),
                "match": row.match,
                "d_ff": plan.sizes[row].d_ff,
                "parameters": plan.sizes[row].parameters,
                **_summarize_row(mine, baseline or []),
            }
            for row, mine in by_row.items()
        ],
        "runs": [dict(run) for run in runs],
    }


def summarize(values: Iterable[float]) -> dict[str, float | int | None]:
    """Mean, sample standard deviation (None of fewer than two) and number of `values`, of which there are some."""
    numbers = list(values)
    sd = statistics.stdev(numbers) if len(numbers) > 1 else None
    return {"mean": statistics.fmean(numbers), "sd": sd, "n": len(numbers)}


def _summarize_row(runs: Sequence[Entry], baseline: Sequence[Entry]) -> dict[str, Any]:
    finished, before = _finished(runs), _finished(baseline)
    tests, others = _tests(finished), _tests(before)
    return {
        "seeds": [run["seed"] for run in runs],
        **{status: [run["seed"] for run in runs if run["status"] == status] for status in (FINISHED, FAILED, PENDING)},
        **{name: summarize(run["metrics"][name] for run in finished) if finished else None for name in _SPEEDS},
        "validation": _scores([run["validation"]["scores"] for run in finished]),
        # At the end of training: not that of the model which was chosen, and is scored.
        "last": _scores([run["last"]["scores"] for run in finished]),
        "tests": tests,
        # Of means, to the baseline's.
        "difference": {
            split: {
                name: entry["mean"] - others[split][name]["mean"]
                for name, entry in scores.items()
                if name in others.get(split, {})
            }
            for split, scores in tests.items()
        },
    }


def _finished(runs: Sequence[Entry]) -> list[Entry]:
    return [run for run in runs if run["status"] == FINISHED]


def _tests(runs: Sequence[Entry]) -> dict[str, Any]:
    splits = runs[0]["tests"] if runs else {}
    return {split: _scores([run["tests"][split]["scores"] for run in runs]) for split in splits}


def _scores(found: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    # What could not be computed for a run has no number there.
    names = dict.fromkeys(name for scores in found for name in scores)
    return {name: summarize(scores[name] for scores in found if name in scores) for name in names}
