"""Differences between two rows: a t interval over seeds, and sacreBLEU's paired bootstrap on outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sacrebleu.significance import PairedTest

from ..errors import UserError, require
from ..tasks.translation import Translation
from ..training.run_folder import RunFolder
from .results import FINISHED, Column, Results, Summary, choose, markdown_lines, named_columns

# A row of another experiment is written as {experiment: row}.
Pairs = Sequence[Sequence[str | Mapping[str, str]]]
_MISSING = "–"


def t_interval(first: Mapping[str, Any], second: Mapping[str, Any], level: float = 0.95) -> tuple[float, float] | None:
    """Welch's interval for the difference of two means; None if a row has one seed.

    Args:
        first, second: the `mean`, sample standard deviation `sd` and number `n` of each row's scores.
    """
    if first["sd"] is None or second["sd"] is None:
        return None
    difference, margin = first["mean"] - second["mean"], 0.0
    one, other = (row["sd"] ** 2 / row["n"] for row in (first, second))
    if one + other:
        freedom = (one + other) ** 2 / (one**2 / (first["n"] - 1) + other**2 / (second["n"] - 1))
        t = require("scipy.stats", "glue", "a t interval").t
        margin = float(t.ppf((1 + level) / 2, freedom)) * (one + other) ** 0.5
    return difference - margin, difference + margin


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
    scores = {name: column for name, column in named_columns(results).items() if column.score}
    columns = dict(zip(shown, choose(scores, shown), strict=True))
    lines = [["difference, 95 % interval", *shown.values()]]
    for pair in pairs:
        label = " − ".join(row if isinstance(row, str) else ": ".join(*row.items()) for row in pair)
        cells = []
        for name, column in columns.items():
            first, second = (_summary(results, others or {}, name, row) for row in pair)
            tests = [test for test in results.get("bootstrap", []) if test["rows"] == pair]
            p_values = [test["p"].get(column.score) for test in tests if test["split"] == column.group]
            cells.append(_cell(column, first, second, p_values))
        if any(cell != _MISSING for cell in cells):
            lines.append([label, *cells])
    return markdown_lines(lines)


def _summary(results: Results, others: Mapping[str, Results], name: str, row: str | Mapping[str, str]) -> Summary:
    """The score in the column `name` of a row; None if it was not measured."""
    if not isinstance(row, str):
        ((experiment, row),) = row.items()
        if experiment not in others:
            return None
        results = others[experiment]
    labels = [each["row"] for each in results["rows"]]
    return named_columns(results)[name].summaries[labels.index(row)] if row in labels else None


def _cell(column: Column, first: Summary, second: Summary, p_values: Sequence[float | None]) -> str:
    if first is None or second is None:
        return _MISSING
    numbers = [_signed(first["mean"] - second["mean"], column.digits)]
    if interval := t_interval(first, second):
        low, high = interval
        numbers.append(f"[{', '.join(_signed(bound, column.digits) for bound in interval)}]")
        if low > 0 or high < 0:
            numbers.append("behind" if (low > 0) == column.is_smaller else "ahead")
    else:
        numbers.append("(one seed)")
    if p := ", ".join(f"{value:.3f}" for value in p_values if value is not None):
        numbers.append(f"(p {p})")
    return " ".join(numbers)


def _signed(number: float, digits: int) -> str:
    return f"{number:+.{digits}f}".replace("-", "−")


def paired_bootstrap(results: Results, folder: Path, pairs: Pairs) -> Iterator[dict[str, Any]]:
    """p-values of sacreBLEU's paired bootstrap for each pair, split and seed of translation with outputs in `folder`.

    Raises:
        UserError: the data of the runs is missing or has changed.
    """
    runs = {(run["row"], run["seed"]): run for run in results["runs"] if run["status"] == FINISHED}
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
