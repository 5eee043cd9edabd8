"""Differences between two rows: Welch's t interval over seeds, and sacreBLEU's paired bootstrap on outputs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
from sacrebleu.significance import PairedTest
from scipy import stats

from ..metrics.text import OWN_VECTORS
from ..tasks.seq2seq import TextPairs
from ..tasks.translation import Translation
from .results import FINISHED, Results, Score, column, decimals, is_smaller_better, reference_row, with_status

# Two rows; a row of another experiment is written as {experiment: row}.
Pair = Sequence[str | Mapping[str, str]]
Interval = tuple[float, float] | None
_NONE: Results = {"runs": [], "tests": {}}


class Difference(NamedTuple):
    """The difference of the means of two rows, its 95 % interval (None: a row has one seed), and a remark on it."""

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
    """Welch's interval for the difference of the means of two rows' scores; None if a row has one seed."""
    if min(len(first), len(second)) < 2:
        return None
    if first.nunique() == second.nunique() == 1:
        return (first.mean() - second.mean(),) * 2
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
    tests = (run["tests"].get(split, {}) for run in with_status(results, FINISHED))
    if first.empty or second.empty or any(test.get("signatures", {}).get(name) == OWN_VECTORS for test in tests):
        return None
    places = decimals(column(results, score))
    found = Difference((first.mean(), second.mean()), t_interval(first, second), places)
    remark = " (one seed)" if found.interval is None else ""
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
    runs, reference, tested = with_status(results, FINISHED), reference_row(results), []
    metrics = Translation.from_options(results["options"]).metrics()
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
    predictions = run["tests"].get(split, {}).get("predictions")
    path = folder / run["folder"] / (predictions or "")
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [str(json.loads(line)["predicted"]) for line in lines] if path.suffix == ".jsonl" else lines
