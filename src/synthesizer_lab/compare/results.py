"""The results of a comparison, as results.json has them: what its runs share, every run, every row over its seeds.

Differences between two rows have Welch's t interval over seeds, and sacreBLEU's paired bootstrap on outputs.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import pandas as pd
from sacrebleu.significance import PairedTest
from scipy import stats

from ..errors import UserError, damage_reported
from ..metrics.text import OWN_VECTORS
from ..tasks import make_task
from ..tasks.base import larger_is_better, tokens_name
from ..tasks.seq2seq import TextPairs
from ..tasks.translation import Translation
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
# Two rows; a row of another experiment is written as {experiment: row}.
Pair = Sequence[str | Mapping[str, str]]
Interval = tuple[float, float] | None
_NONE: Results = {"runs": [], "tests": {}}


def finished(results: Results) -> list[Results]:
    """The runs that were trained and scored."""
    return [run for run in results["runs"] if run["status"] == FINISHED]


def reference_row(results: Results) -> str:
    """The row that the others are compared with: vanilla, or the first."""
    rows = [str(row["row"]) for row in results["rows"]]
    return "vanilla" if "vanilla" in rows else rows[0]


def test_name(split: str) -> str:
    """The name of a split in the tests of results: "validation" are the scores of training."""
    return "valid" if split == "validation" else split


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
    found = {(run["row"], run["seed"]): run_scores(results, run) for run in finished(results)}
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
    tests = {test_name(split.name): split.fingerprint() for split in plan.tests.values()}
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
    for score in dict.fromkeys(chain(*(run_scores(results, run) for run in finished(results)))):
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


class Difference(NamedTuple):
    """The difference of the means of two rows, its 95 % interval (None: one seed, no variance), and a remark."""

    means: tuple[float, float]
    interval: Interval
    places: int
    remark: str = ""

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)

    @property
    def numbers(self) -> str:
        """The difference with its interval."""
        found = (self.means[0] - self.means[1], *(self.interval or ()))
        text, *bounds = (f"{number:+.{self.places}f}".replace("-", "−") for number in found)
        return f"{text} [{', '.join(bounds)}]" if bounds else text

    def __str__(self) -> str:
        return self.numbers + self.remark


def t_interval(first: pd.Series, second: pd.Series) -> Interval:
    """Welch's interval for the difference of the means of two rows' scores; None if a row has one seed.

    If neither row varies, it is (0, 0) for equal scores and None for others.
    """
    if min(len(first), len(second)) < 2:
        return None
    if first.nunique() == second.nunique() == 1:
        return (0.0, 0.0) if first.iloc[0] == second.iloc[0] else None
    with warnings.catch_warnings():
        # The scores of one row may all be the same.
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    return float(low), float(high)


def difference(
    results: Results, pair: Pair, score: Score, others: Mapping[str, Results] = MappingProxyType({})
) -> Difference | None:
    """The difference of two rows, with the p-values in `results`; None if they have no scores that can be compared.

    Args:
        others: the results of other experiments that the pair names.
    """
    split, name = score
    samples = []
    for row in pair:
        home, label = (results, row) if isinstance(row, str) else next((others.get(key), row[key]) for key in row)
        found = column(home or _NONE, score)
        samples.append(found[found.index.get_level_values("row") == label])
    first, second = samples
    # Similarities that each model measures with its own embeddings do not compare.
    tests = (run["tests"].get(split, {}) for run in finished(results))
    if first.empty or second.empty or any(test.get("signatures", {}).get(name) == OWN_VECTORS for test in tests):
        return None
    places = decimals(column(results, score))
    found = Difference((first.mean(), second.mean()), t_interval(first, second), places)
    remark = "" if found.interval else " (one seed)" if min(map(len, samples)) < 2 else " (no variance)"
    if found.is_clear:
        remark = " behind" if (found.means[0] > found.means[1]) == is_smaller_better(results, name) else " ahead"
    own = [test for test in results["bootstrap"] if test["rows"] == pair and test["split"] == split]
    if p := ", ".join(f"{test['p'][name]:.3f}" for test in own if name in test["p"]):
        remark += f" (p {p})"
    return found._replace(remark=remark)


def paired_bootstrap(results: Results, folder: Path, splits: Mapping[str, TextPairs]) -> list[dict[str, Any]]:
    """p-values of sacreBLEU's paired bootstrap for each row against the reference row, in each test and seed.

    Only translation has them. `splits` are the tests; `folder` has the outputs.
    """
    if results["task"] != Translation.name:
        return []
    runs, reference, tested = finished(results), reference_row(results), []
    metrics = cast(Translation, make_task(results["task"], results["options"])).metrics()
    for split, seed in product(results["tests"], sorted({run["seed"] for run in runs})):
        outputs = {run["row"]: read_outputs(folder, run, split) for run in runs if run["seed"] == seed}
        lines = splits[split].complete()
        systems: list[tuple[str, Sequence[str]]]
        systems = [(row, [texts[line] for line in lines]) for row, texts in outputs.items() if texts]
        # The first is the one that the others are compared with.
        systems.sort(key=lambda system: system[0] != reference)
        if len(systems) < 2 or systems[0][0] != reference:
            continue
        _, found = PairedTest(systems, dict(metrics), [splits[split].references_of(lines)], test_type="bs")()
        # Of each metric the result of each system; before them the systems' names.
        scores: Any = dict(zip(metrics, list(found.values())[1:], strict=True))
        for index, (row, _) in enumerate(systems[1:], start=1):
            # sacreBLEU has 1 / (samples + 1) for equal outputs: it counts larger differences only.
            p = {
                name: 1.0 if own[index].score == own[0].score else round(own[index].p_value, 4)
                for name, own in scores.items()
            }
            tested.append({"rows": [row, reference], "split": split, "seed": seed, "p": p})
    return tested


def read_outputs(folder: Path, run: Mapping[str, Any], split: str) -> list[str]:
    """The outputs of a run on a split; none if they were not saved."""
    path = folder / run["folder"] / (run["tests"].get(split, {}).get("predictions") or "")
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    # For GLUE, "predicted" is the label that the output "text" means.
    rows = map(json.loads, lines if path.suffix == ".jsonl" else [])
    return [str(row.get("text", row["predicted"])) for row in rows] or lines
