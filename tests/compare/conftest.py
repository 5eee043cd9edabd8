"""Comparisons that tests run: small models, a few steps."""

import json
from pathlib import Path
from typing import Any

import pytest

from synthesizer_lab.compare.plan import Comparison
from synthesizer_lab.compare.rows import parse_rows
from synthesizer_lab.compare.run import compare
from synthesizer_lab.tasks.translation import Translation
from training.conftest import SMALL, _one_thread, corpus
from training.runs import silent

__all__ = ["_one_thread", "corpus"]

Results = dict[str, Any]


def run_comparison(
    data: Path,
    output: Path,
    rows: str = "vanilla,random",
    seeds: tuple[int, ...] = (0,),
    *,
    jobs: int = 1,
    report: Any = silent,
    callbacks: Any = (),
    **changes: Any,
) -> tuple[Results, int | None]:
    """By default translation: 4 steps for each run, and greedy tests."""
    comparison = {
        "task": Translation("en", "de"),
        "data": data,
        "preset": "tiny",
        "overrides": SMALL,
        "training": {"max_steps": 4},
        "generation": {"num_beams": 1},
        **changes,
    }
    chosen = Comparison(**comparison)
    return compare(chosen, parse_rows([rows]), seeds, output, jobs=jobs, report=report, callbacks=callbacks)


def failures(results: Results) -> list[Results]:
    return [run for run in results["runs"] if run["status"] == "failed"]


def without_times(results: Results) -> Results:
    """Results without times, dates and commands, which may differ between two equal runs."""
    copy: Results = json.loads(json.dumps(results))
    for entry in (*copy["rows"], *copy["runs"], *(run.get("metrics", {}) for run in copy["runs"])):
        for name in ("date", "commands", "tokens_per_second", "minutes"):
            entry.pop(name, None)
    return copy


def add_row(results: Results, label: str, bleu: float | None, sd: float | None = None, **changes: Any) -> None:
    """Add a row with a run for each seed, and half the BLEU on the second test; without BLEU, it has failed."""
    seeds = [0] if sd is None else [0, 1]
    row = {"row": label, "match": None, "d_ff": None, "parameters": 2093568, "seeds": seeds, "pending": []}
    if bleu is None:
        results["runs"].append({"row": label, "seed": 0, "status": "failed", "reason": "out of memory"})
        results["rows"].append({**row, "finished": [], "failed": [0]})
        return
    results["rows"].append({**row, "finished": seeds, "failed": [], **changes})
    test = {"signatures": {"bleu": "tok:13a"}, "truncated": 0, "skipped": 0, "examples": 1000, "not_computed": {}}
    results["runs"] += [
        {
            "row": label,
            "seed": seed,
            "folder": f"{label}/seed-{seed}",
            "status": "finished",
            "commands": ["synthesizer compare translation --seeds 0,1"],
            "versions": {"torch": "2.13.0", "threads": 1},
            "date": f"2026-11-2{1 + seed}T12:00:00+00:00",
            "metrics": {"tokens_per_second": 14476.4, "minutes": 20.04, "steps": 100},
            **{group: {"scores": {}} for group in ("validation", "last")},
            "tests": {
                "test_2016_flickr": {**test, "scores": {}},
                "test_2017": {**test, "scores": {}, "truncated": 2, "skipped": 3},
            },
        }
        for seed in seeds
    ]
    for group, name, mean in (
        *(("validation", "loss", 1.7921), ("validation", "bleu", bleu), ("last", "loss", 1.7899)),
        *(("test_2016_flickr", "bleu", bleu), ("test_2017", "bleu", bleu / 2)),
    ):
        set_score(results, label, group, name, mean, sd)


def set_score(results: Results, label: str, group: str, name: str, mean: float, sd: float | None = None) -> None:
    """Give the two runs of a row scores with this sample standard deviation; without one, all have the same."""
    for sign, run in zip((-1, 1), (run for run in results["runs"] if run["row"] == label), strict=False):
        {**run, **run["tests"]}[group]["scores"][name] = mean + sign * (sd or 0) / 2**0.5


@pytest.fixture
def results() -> Results:
    found = {
        "task": "translation",
        "options": {"source": "en", "target": "de"},
        "settings": {"preset": "tiny"},
        "budget": {"steps": None, "minutes": 20.0},
        "score_labels": {"bleu": "BLEU", "chrf": "chrF"},
        "selected_by": "bleu",
        "larger_is_better": True,
        "tokens": "source + target tokens",
        "tokenizer": {"size": 6000},
        "data": {"train": {"split": "train"}, "valid": {"split": "val"}},
        "tests": {"test_2016_flickr": {"split": "test_2016_flickr"}, "test_2017": {"split": "test_2017"}},
        "generation": {"num_beams": 4, "length_penalty": 0.6},
        "rows": [],
        "runs": [],
        "bootstrap": [],
    }
    add_row(found, "vanilla", 37.7, 0.1)
    add_row(found, "vanilla-control", 38.2, 0.25, match="random+vanilla", d_ff=1274)
    add_row(found, "a|b", None)
    return found
