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
    copy = json.loads(json.dumps(results))
    for row in copy["rows"]:
        del row["tokens_per_second"], row["minutes"]
    for run in copy["runs"]:
        for name in ("date", "commands"):
            run.pop(name, None)
        for name in ("tokens_per_second", "minutes"):
            run.get("metrics", {}).pop(name, None)
    return dict(copy)


def mean(mean: float, sd: float | None = None) -> dict[str, float | None]:
    """A score over two seeds, or one."""
    return {"mean": mean, "sd": sd, "n": 1 if sd is None else 2}


def make_row(label: str, bleu: float | None, sd: float | None = None, **changes: Any) -> Any:
    """A row with two seeds, and half the BLEU on the second test."""
    scored = bleu is not None
    tests = {"test_2016_flickr": {"bleu": mean(bleu or 0, sd)}, "test_2017": {"bleu": mean((bleu or 0) / 2, sd)}}
    return {
        "row": label,
        "match": None,
        "d_ff": None,
        "parameters": 2093568,
        "seeds": [0, 1],
        "finished": [0, 1] if scored else [],
        "failed": [] if scored else [0, 1],
        "pending": [],
        "tokens_per_second": mean(14476.4) if scored else None,
        "minutes": mean(20.04) if scored else None,
        "validation": {"loss": mean(1.7921, sd), "bleu": mean(bleu or 0, sd)} if scored else {},
        "last": {"loss": mean(1.7899, sd)} if scored else {},
        "tests": tests if scored else {},
        **changes,
    }


def make_run(label: str, seed: int = 0, **changes: Any) -> Any:
    test = {"signatures": {"bleu": "tok:13a"}, "truncated": 0, "skipped": 0}
    test |= {"examples": 1000, "not_computed": {}}
    return {
        "row": label,
        "seed": seed,
        "folder": f"{label}/seed-{seed}",
        "status": "finished",
        "commands": ["synthesizer compare translation --seeds 0,1"],
        "versions": {"torch": "2.13.0", "threads": 1},
        "date": "2026-11-21T12:00:00+00:00",
        "tests": {"test_2016_flickr": test, "test_2017": {**test, "truncated": 2, "skipped": 3}},
        **changes,
    }


@pytest.fixture
def results() -> dict[str, Any]:
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
        "warnings": [],
        "rows": [
            make_row("vanilla", 37.7, 0.1),
            make_row("vanilla-control", 38.2, 0.25, match="random+vanilla", d_ff=1274),
            make_row("a|b", None),
        ],
        "runs": [
            make_run("vanilla"),
            make_run("vanilla", 1, date="2026-11-22T01:00:00+00:00"),
            make_run("vanilla-control"),
            {"row": "a|b", "seed": 0, "status": "failed", "reason": "out of memory"},
        ],
    }
    # Tests change parts of it.
    return dict(json.loads(json.dumps(found)))
