"""Differences between two rows: Welch's t interval over seeds, and sacreBLEU's paired bootstrap on outputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from sacrebleu.significance import PairedTest
from scipy import stats

from ..errors import UserError
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
        cells = [_difference(results, pair, score, others or {}) for score in columns]
        if any(cell != NOTHING for cell in cells):
            lines.append([label, *cells])
    return markdown_lines(lines)


def _difference(
    results: Results, pair: Sequence[str | Mapping[str, str]], score: Score, others: Mapping[str, Results]
) -> str:
    samples = []
    for row in pair:
        home, name = (results, row) if isinstance(row, str) else next(iter(row.items()))
        found = others.get(home, {"runs": [], "tests": {}}) if isinstance(home, str) else home
        samples.append(scores_of(found, score, name))
    first, second = samples
    if first.empty or second.empty:
        return NOTHING
    text, interval = write_difference(first, second, digits(column(measurements(results), score)))
    if interval is None:
        text += " (one seed)"
    elif interval[0] > 0 or interval[1] < 0:
        text += " behind" if (interval[0] > 0) == is_smaller_better(results, score) else " ahead"
    tests = [test for test in results.get("bootstrap", []) if test["rows"] == pair and test["split"] == score[0]]
    if p := ", ".join(f"{test['p'][score[1]]:.3f}" for test in tests if score[1] in test["p"]):
        text += f" (p {p})"
    return text


def paired_bootstrap(results: Results, folder: Path, pairs: Pairs) -> Iterator[dict[str, Any]]:
    """p-values of sacreBLEU's paired bootstrap for each pair, split and seed of translation with outputs in `folder`.

    Raises:
        UserError: the data of the runs is missing or has changed.
    """
    runs = {(run["row"], run["seed"]): run for run in with_status(results, FINISHED)}
    for first, second in pairs if results["task"] == Translation.name else ():
        if not (isinstance(first, str) and isinstance(second, str)):
            continue
        for seed in sorted(seed for row, seed in runs if row == first and (second, seed) in runs):
            for split in results["tests"]:
                outputs = [_outputs(folder, runs[row, seed], split) for row in (second, first)]
                if all(outputs):
                    run = RunFolder(folder / runs[first, seed]["folder"])
                    p = _p_values(run, split, results["tests"][split], outputs)
                    yield {"rows": [first, second], "split": split, "seed": seed, "p": p}


def _outputs(folder: Path, run: Mapping[str, Any], split: str) -> list[str]:
    """The outputs of a run on a split; none if they were not saved."""
    predictions = run["tests"].get(split, {}).get("predictions")
    path = folder / run["folder"] / (predictions or "")
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []


def _p_values(
    run: RunFolder, split: str, fingerprint: Mapping[str, Any], outputs: Sequence[Sequence[str]]
) -> dict[str, float]:
    info = run.read_info()
    task, data = run.read_task(info), Path(info["data"])
    assert isinstance(task, Translation)
    pairs = task.read(data, split)
    if pairs.fingerprint() != fingerprint:
        raise UserError(f"{data}: got other text in the split {split!r}; expected the text that was scored")
    rows, metrics = pairs.complete(), task.metrics()
    systems: list[tuple[str, Sequence[str]]]
    systems = [(str(number), [texts[row] for row in rows]) for number, texts in enumerate(outputs)]
    # Per metric the results of both systems, the first of which is the baseline; before them the systems' names.
    _, found = PairedTest(systems, metrics, [pairs.references_of(rows)], test_type="bs")()
    tested: list[Any] = [second for _, second in found.values()][1:]
    return {name: round(test.p_value, 4) for name, test in zip(metrics, tested, strict=True)}
