"""Differences between two rows: Welch's t interval over seeds, and sacreBLEU's paired bootstrap on outputs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import pandas as pd
from sacrebleu.significance import PairedTest
from scipy import stats

from ..errors import UserError
from ..tasks.seq2seq import TextPairs
from ..tasks.translation import Translation
from ..training.run_folder import RunFolder
from .results import FINISHED, Results, Score, column, measurements, with_status
from .tables import NOTHING, choose, digits, is_smaller_better, markdown_lines, score_columns

# A row of another experiment is written as {experiment: row}.
Pairs = Sequence[Sequence[str | Mapping[str, str]]]
Interval = tuple[float, float] | None


def t_interval(first: pd.Series, second: pd.Series, level: float = 0.95) -> Interval:
    """Welch's interval for the difference of the means of two rows' scores; None if a row has one seed."""
    if min(len(first), len(second)) < 2:
        return None
    if first.nunique() == second.nunique() == 1:
        return (first.mean() - second.mean(),) * 2
    with warnings.catch_warnings():
        # The scores of one row may all be the same.
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval(level)
    return float(low), float(high)


def scores_of(results: Results, score: Score, row: str) -> pd.Series:
    """The scores of a row, one for each finished seed."""
    found = column(measurements(results), score).dropna()
    return found[found.index.get_level_values("row") == row]


def write_difference(first: pd.Series, second: pd.Series, places: int) -> tuple[str, Interval]:
    """The difference of the means of two rows with its interval, in words, and the interval."""
    numbers, interval = [first.mean() - second.mean()], t_interval(first, second)
    text, *bounds = (f"{number:+.{places}f}".replace("-", "−") for number in [*numbers, *(interval or ())])
    return (f"{text} [{', '.join(bounds)}]" if bounds else text), interval


class Difference(NamedTuple):
    """The difference of two rows in words, and whether its interval excludes 0."""

    text: str
    is_clear: bool


def difference_table(
    results: Results, pairs: Pairs, shown: Mapping[str, str], others: Mapping[str, Results] | None = None
) -> str:
    """The differences of pairs of rows as a Markdown table; pairs without results are left out.

    Args:
        shown: the scores to show, by their columns in the table of results, with the names to give them.
        others: the results of other experiments that pairs name.

    Raises:
        ValueError: there is no column of a name, or it is no score.
    """
    columns = choose(score_columns(results), shown)
    lines = [["difference, 95 % interval", *shown.values()]]
    for pair in pairs:
        label = " − ".join(row if isinstance(row, str) else ": ".join(*row.items()) for row in pair)
        cells = [difference(results, pair, score, others or {}) for score in columns]
        if any(cells):
            lines.append([label, *(cell.text if cell else NOTHING for cell in cells)])
    return markdown_lines(lines)


def difference(
    results: Results,
    pair: Sequence[str | Mapping[str, str]],
    score: Score,
    others: Mapping[str, Results] = MappingProxyType({}),
) -> Difference | None:
    """The difference of a pair of rows, with the p-values in `results`; None if a row has no score."""
    samples = []
    for row in pair:
        home, name = (results, row) if isinstance(row, str) else next(iter(row.items()))
        found = others.get(home, {"runs": [], "tests": {}}) if isinstance(home, str) else home
        samples.append(scores_of(found, score, name))
    first, second = samples
    if first.empty or second.empty:
        return None
    text, interval = write_difference(first, second, digits(column(measurements(results), score)))
    is_clear = interval is not None and (interval[0] > 0 or interval[1] < 0)
    if interval is None:
        text += " (one seed)"
    elif is_clear:
        text += " behind" if (interval[0] > 0) == is_smaller_better(results, score) else " ahead"
    tests = [test for test in results.get("bootstrap", []) if test["rows"] == pair and test["split"] == score[0]]
    if p := ", ".join(f"{test['p'][score[1]]:.3f}" for test in tests if score[1] in test["p"]):
        text += f" (p {p})"
    return Difference(text, is_clear)


def paired_bootstrap(
    results: Results, folder: Path, pairs: Pairs, read: Callable[[str], TextPairs]
) -> list[dict[str, Any]]:
    """p-values of sacreBLEU's paired bootstrap for each pair, split and seed of translation with outputs in `folder`.

    Args:
        read: returns a split by its name; called only for splits with outputs.
    """
    if results["task"] != Translation.name:
        return []
    runs = {(run["row"], run["seed"]): run for run in with_status(results, FINISHED)}
    metrics = Translation.from_options(results["options"]).metrics()
    own = [(first, second) for first, second in pairs if isinstance(first, str) and isinstance(second, str)]
    tested = []
    for split, seed in product(results["tests"], sorted({seed for _, seed in runs})):
        outputs = {row: read_outputs(folder, runs[row, number], split) for row, number in runs if number == seed}
        for baseline in dict.fromkeys(second for _, second in own):
            rows = [first for first, second in own if second == baseline and outputs.get(first)]
            if rows and outputs.get(baseline):
                found = _p_values(metrics, read(split), {row: outputs[row] for row in (baseline, *rows)})
                tested += [
                    {"rows": [row, baseline], "split": split, "seed": seed, "p": p}
                    for row, p in zip(rows, found, strict=True)
                ]
    return sorted(tested, key=lambda test: (own.index((*test["rows"],)), test["seed"]))


def read_outputs(folder: Path, run: Mapping[str, Any], split: str) -> list[str]:
    """The outputs of a run on a split; none if they were not saved."""
    predictions = run["tests"].get(split, {}).get("predictions")
    path = folder / run["folder"] / (predictions or "")
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [str(json.loads(line)["predicted"]) for line in lines] if path.suffix == ".jsonl" else lines


def read_test(results: Results, folder: Path, split: str) -> TextPairs:
    """The text of a test, from the data that the runs were trained on.

    Raises:
        UserError: the data is missing or has changed.
    """
    run = RunFolder(folder / with_status(results, FINISHED)[0]["folder"])
    info = run.read_info()
    pairs = run.read_task(info).read(Path(info["data"]), split)
    if pairs.fingerprint() != results["tests"][split]:
        raise UserError(f"{info['data']}: got other text in the split {split!r}; expected the text that was scored")
    return cast(TextPairs, pairs)


def _p_values(
    metrics: Mapping[str, Any], pairs: TextPairs, outputs: Mapping[str, Sequence[str]]
) -> list[dict[str, float]]:
    """The p-values of each system against the first by the metrics' names."""
    rows = pairs.complete()
    systems: list[tuple[str, Sequence[str]]]
    systems = [(name, [texts[row] for row in rows]) for name, texts in outputs.items()]
    # Per metric the results of the systems; before them the systems' names.
    _, found = PairedTest(systems, dict(metrics), [pairs.references_of(rows)], test_type="bs")()
    tested = [results[1:] for results in list(found.values())[1:]]
    return [
        {name: round(each.p_value, 4) for name, each in zip(metrics, own, strict=True)}
        for own in zip(*tested, strict=True)
    ]
