"""The tables of a comparison, as Markdown and as text, and the notes to read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import chain
from types import MappingProxyType
from typing import Any

import pandas as pd

from ..metrics.text import OWN_VECTORS
from ..tasks import get_task
from .results import FAILED, Pair, Results, Score, column, decimals, difference, finished, reference_row, run_scores

_NOTHING = "–"


def score_columns(results: Results) -> dict[str, Score]:
    """The scores that are shown, by the names of their columns."""
    scores = [*chain(*(run_scores(results, run) for run in finished(results)))]
    scores += [(split, name) for split, test in _tests(results) for name in test["not_computed"]]
    columns: dict[str, Score] = {}
    for group in ("validation", *results["tests"]):
        labels = results["score_labels"] | ({"loss": "loss"} if group == "validation" else {})
        keys = [name for own, name in scores if own == group]
        shown = {name: label for name, label in labels.items() if name in keys} or {name: name for name in keys}
        columns |= {f"{group} {label}": (group, name) for name, label in shown.items()}
        # The selected checkpoint may be of an early step.
        if group == "validation" and results["selected_by"] != "loss" and ("last", "loss") in scores:
            columns["validation loss, last step"] = ("last", "loss")
    # Without generation, a test on the validation data repeats the validation.
    for split, test in results["tests"].items():
        if results.get("generation", True) is None and test["split"] == results["data"]["valid"]["split"]:
            for label in results["score_labels"].values():
                if f"{split} {label}" in columns:
                    columns.pop(f"validation {label}", None)
    return columns


def score_table(results: Results, mark: str = "{}") -> pd.DataFrame:
    """The cells, a line for each row; `mark` formats scores that differ from the reference row's by their interval."""
    rows, reference = results["rows"], reference_row(results)
    unfinished = [f" of {len(row['seeds'])}" if row["failed"] or row["pending"] else "" for row in rows]
    is_short = column(results, ("", "minutes")).max() < 1
    cells = {
        "seeds": [f"{len(row['finished'])}{rest}" for row, rest in zip(rows, unfinished, strict=True)],
        "parameters": [f"{row['parameters']:,}" for row in rows],
        "tokens/s": _means(results, ("", "tokens_per_second"), ",.0f"),
        "minutes": _means(results, ("", "minutes"), ".2g" if is_short else ".1f"),
    }
    for name, score in score_columns(results).items():
        texts = _means(results, score, f".{decimals(column(results, score))}f")
        found = [difference(results, [row["row"], reference], score) for row in rows]
        marks = [mark if each and each.is_clear else "{}" for each in found]
        cells[name] = [form.format(text) for form, text in zip(marks, texts, strict=True)]
    return pd.DataFrame(cells, index=[row["row"] for row in rows], dtype=object)


def _means(results: Results, score: Score, form: str) -> list[str]:
    """Mean ± standard deviation of each row; of speeds the mean."""
    values = column(results, score).groupby(level="row").agg(["mean", "std"])
    cells = dict.fromkeys((row["row"] for row in results["rows"]), _NOTHING)
    for row, (mean, sd) in values.iterrows():
        cells[str(row)] = f"{mean:{form}} ± {sd:{form}}" if score[0] and pd.notna(sd) else f"{mean:{form}}"
    return [*cells.values()]


def difference_table(
    results: Results,
    pairs: Mapping[str, Pair],
    scores: Mapping[str, Score],
    mark: str = "{}",
    others: Mapping[str, Results] = MappingProxyType({}),
) -> pd.DataFrame:
    """The differences of pairs of rows, by the names of pairs and scores; pairs without results are left out."""
    lines = {}
    for name, pair in pairs.items():
        found = [difference(results, pair, score, others) for score in scores.values()]
        if any(found):
            lines[name] = [(mark if each.is_clear else "{}").format(each) if each else _NOTHING for each in found]
    return pd.DataFrame([*lines.values()], index=[*lines], columns=[*scores], dtype=object)


def _tests(results: Results) -> Iterator[tuple[str, Results]]:
    """The split and the scores of each test in the table."""
    for run in finished(results):
        yield from ((split, run["tests"][split]) for split in results["tests"])


def check_columns(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError if there is no column of a name."""
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"got the columns {'; '.join(missing)}; expected some of: {'; '.join(known)}")


def markdown(cells: pd.DataFrame, corner: str = "synthesizer") -> str:
    """A table as Markdown; `corner` is the header of its first column."""
    lines = [[corner, *cells.columns], ["---", *["---:"] * len(cells.columns)], *cells.itertuples()]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def markdown_page(results: Results) -> str:
    """The table, the notes to read it, and the commands that made it, as Markdown."""
    listed = "".join(f"- {note}\n" for note in notes(results, "Bold"))
    commands = "\n".join(dict.fromkeys(command for run in results["runs"] for command in run.get("commands", [])))
    text = f"{markdown(score_table(results, '**{}**'))}\n{listed}"
    return f"{text}\n```console\n{commands}\n```\n" if commands else text


def terminal_page(results: Results, width: int | None) -> str:
    """The table and the notes to read it as text; columns that are too wide together stand below one another."""
    cells = score_table(results, "{} *")
    cells.columns = pd.MultiIndex.from_tuples([name.partition(" ")[::2] for name in cells])
    return "\n".join([cells.to_string(line_width=width), "", *notes(results, "*"), ""])


def notes(results: Results, mark: str | None = None) -> Iterator[str]:
    """The lines below the table: what was run, and how to read the scores; `mark` is how clear differences look."""
    defaults = {field.name: field.default for field in fields(get_task(results["task"]))}
    chosen = {name: value for name, value in results["options"].items() if value != defaults.get(name)}
    about = ", ".join([results["task"], *_written(chosen), f"preset {results['settings']['preset']}"])
    steps, minutes = results["budget"]["steps"], results["budget"]["minutes"]
    ends = ([f"{steps:,} steps"] if steps else []) + ([f"{minutes:g} minutes without validation"] if minutes else [])
    size = f"{results['tokenizer']['size']:,}"
    yield f"{about}: {' or '.join(ends)} for each run; the same data, one tokenizer of {size} tokens."
    if results.get("from") is not None:
        yield f"Trained from the weights of {results['from']}; rows with @from=none from new weights."
    yield f"Mean ± sample standard deviation over seeds. tokens/s: {results['tokens']} per second of training."
    if mark:
        yield f"{mark}: the 95 % interval of the difference to {reference_row(results)} excludes 0."
    selected = results["score_labels"].get(results["selected_by"], results["selected_by"])
    generation = ", ".join(_written(results["generation"] or {}))
    yield f"Checkpoints are selected by validation {selected}; these are tested{generation and f' ({generation})'}."
    selected_on = results["data"]["valid"]["split"]
    if selected_on in (test["split"] for test in results["tests"].values()):
        yield f"{selected_on} also selected the checkpoints; scores on unseen text would be somewhat worse."
    for row in results["rows"]:
        if row["match"] is not None:
            yield f"{row['row']}: d_ff {row['d_ff']:,}, as many parameters as {row['match']} or the closest to it."
    yield from dict.fromkeys(_scoring(results))
    for run in results["runs"]:
        if run["status"] == FAILED:
            yield f"{run['row']}, seed {run['seed']} failed: {run['reason']}"
    if runs := finished(results):
        versions = (", ".join(f"{name} {value}" for name, value in run["versions"].items()) for run in runs)
        days = sorted({run["date"][:10] for run in runs})
        yield f"{' and '.join(dict.fromkeys(versions))}; {' to '.join(dict.fromkeys([days[0], days[-1]]))}."


def _written(options: Mapping[str, Any]) -> list[str]:
    return [f"{name} {value}" for name, value in options.items() if value or value is False]


def _scoring(results: Results) -> Iterator[str]:
    """Long inputs, signatures and missing scores."""
    labels = results["score_labels"]
    for split, test in _tests(results):
        if test["truncated"]:
            yield f"{split}: {test['truncated']} of {test['examples']} inputs over the maximum length truncated."
        if test["skipped"]:
            yield f"{split}: {test['skipped']} malformed lines skipped."
        for name, signature in test["signatures"].items():
            note = "; does not compare between rows" if signature == OWN_VECTORS else ""
            yield f"{labels.get(name, name)}: {signature}{note}"
        yield from (f"{labels[name]} not computed: {reason}" for name, reason in test["not_computed"].items())
