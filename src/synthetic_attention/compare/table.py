"""The results of a comparison as tables: Markdown for a file, rich text for a terminal. Both from results.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..metrics.embeddings import OWN_VECTORS
from ..tasks import get_task
from ..tasks.options import chosen_options

__all__ = ["markdown_table", "print_comparison", "reading_notes"]

# What rich puts between two columns, and at the edges of a table.
_GAP, _EDGES = 2, 2
_WIDEST_LABEL = 32
# A reason that is longer stands below the table only.
_LONGEST_REASON = 16
_NOTHING, _FAILED = "–", "failed"
# Scores of which less is better, whatever a task selects by.
_SMALLER = {"bits_per_byte", "invalid", "loss", "perplexity", "word_perplexity"}


@dataclass(frozen=True)
class _Column:
    """A column of the table; `group` is what stands above its name, and `best` are the rows with the best value."""

    group: str
    name: str
    cells: list[str]
    best: frozenset[int] = frozenset()

    @property
    def header(self) -> list[str]:
        """Short lines: the names of splits are long, and the numbers below them are not."""
        return [*self.group.replace("_", "_\n").split("\n"), self.name]

    @property
    def width(self) -> int:
        """Of header and cells, a mark included where there is one."""
        cells = max(map(cell_len, self.cells), default=0) + (2 if self.best else 0)
        return max(cells, *map(cell_len, self.header))


def markdown_table(results: Mapping[str, Any]) -> str:
    """The whole table, what it means, and the commands that made it, as Markdown."""
    columns = [column for group in _groups(results) for column in group]
    labels = [_escape(row["row"]) for row in results["rows"]]
    header = ["synthesizer", *(_escape(f"{column.group} {column.name}".strip()) for column in columns)]
    lines = [header, ["---", *["---:"] * len(columns)]]
    for index, label in enumerate(labels):
        cells = [f"**{column.cells[index]}**" if index in column.best else column.cells[index] for column in columns]
        lines.append([label, *map(_escape, cells)])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    notes = "\n".join(f"- {note}" for note in _notes(results, "Bold"))
    commands = dict.fromkeys(command for run in results["runs"] for command in run.get("commands", []))
    shown = "\n".join(commands)
    return f"{table}\n\n{notes}\n" + (f"\n```console\n{shown}\n```\n" if commands else "")


def print_comparison(results: Mapping[str, Any], console: Console) -> None:
    """The table on a terminal, in parts below each other where it is too narrow, and what it means."""
    labels = [row["row"] for row in results["rows"]]
    room = console.width - _EDGES - min(_WIDEST_LABEL, max(map(cell_len, ["synthesizer", *labels])))
    for columns in _pack(_groups(results), room):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        table.add_column("synthesizer", vertical="bottom", overflow="fold", max_width=_WIDEST_LABEL)
        for column in columns:
            table.add_column("\n".join(column.header), justify="right", vertical="bottom", no_wrap=True)
        for index, label in enumerate(labels):
            table.add_row(Text(label), *(_mark(column, index) for column in columns))
        console.print(table)
    for note in _notes(results, "*"):
        console.print(Text(note))


def _mark(column: _Column, row: int) -> Text:
    text = column.cells[row]
    if not column.best:
        return Text(text)
    return Text(f"{text} *", style="bold") if row in column.best else Text(f"{text}  ")


def _pack(groups: Sequence[list[_Column]], room: int) -> Iterator[list[_Column]]:
    """Tables that are at most `room` wide; a group is divided only if it is wider alone."""
    table: list[_Column] = []
    for group in groups:
        # Whole if it fits into a table alone.
        for part in [group] if _width(group) <= room else [[column] for column in group]:
            if table and _width([*table, *part]) > room:
                yield table
                table = []
            table = [*table, *part]
    yield table


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width + _GAP for column in columns)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _groups(results: Mapping[str, Any]) -> list[list[_Column]]:
    """The columns: of the runs, of the validation, of each split."""
    rows = results["rows"]
    seeds = [f"{len(r['finished'])}" + (f" of {len(r['seeds'])}" if r["failed"] or r["pending"] else "") for r in rows]
    parameters = [f"{row['parameters']:,}" for row in rows]
    speeds, minutes = ([row[name] for row in rows] for name in ("tokens_per_second", "minutes"))
    groups = [
        [
            _Column("", "seeds", seeds),
            _Column("", "parameters", parameters),
            _Column("", "tokens/s", [_NOTHING if s is None else f"{s['mean']:,.0f}" for s in speeds], _best(speeds)),
            _Column("", "minutes", [_NOTHING if m is None else f"{m['mean']:.1f}" for m in minutes]),
        ],
        [
            _score_column("validation", label, [row["validation"].get(name) for row in rows], name, results)
            for name, label in _shown(results, (row["validation"] for row in rows), "loss").items()
        ],
    ]
    return [*groups, *(_split_columns(split, results) for split in results["tests"])]


def _split_columns(split: str, results: Mapping[str, Any]) -> list[_Column]:
    rows = results["rows"]
    found = [row["tests"].get(split, {}) for row in rows]
    absent = [_not_computed(results, row["row"], split) for row in rows]
    shown = _shown(results, [*found, *absent])
    columns = [
        _score_column(split, label, [f.get(name) for f in found], name, results, [a.get(name) for a in absent])
        for name, label in shown.items()
    ]
    first = next(iter(shown), None)
    if results["baseline"] is None or first is None:
        return columns
    changes = [row["difference"].get(split, {}).get(first) for row in rows]
    digits = _digits([f.get(first) for f in found])
    cells = [
        "" if row["row"] == results["baseline"] else _NOTHING if change is None else f"{change:+.{digits}f}"
        for row, change in zip(rows, changes, strict=True)
    ]
    return [columns[0], _Column(split, f"Δ {shown[first]}", cells), *columns[1:]]


def _shown(results: Mapping[str, Any], found: Any, *others: str) -> dict[str, str]:
    """The scores that people are shown, with their labels; all there are, if none of these is there."""
    there = dict.fromkeys(name for scores in found for name in scores)
    labels = {**results["score_labels"], **{name: name for name in others if name not in results["score_labels"]}}
    return {name: label for name, label in labels.items() if name in there} or {name: name for name in there}


def _not_computed(results: Mapping[str, Any], row: str, split: str) -> dict[str, str]:
    """The scores that no run of a row has on a split, and why."""
    tests = [run["tests"].get(split) for run in results["runs"] if run["row"] == row and "tests" in run]
    return {name: reason for test in tests if test for name, reason in test["not_computed"].items()}


def _score_column(
    group: str,
    label: str,
    found: Sequence[Mapping[str, Any] | None],
    name: str,
    results: Mapping[str, Any],
    reasons: Sequence[str | None] = (),
) -> _Column:
    digits, cells = _digits(found), []
    for row, score, reason in zip_longest(results["rows"], found, reasons):
        if score is None and reason is not None:
            cells.append(reason if len(reason) <= _LONGEST_REASON else "not computed")
        elif score is None:
            cells.append(_FAILED if row["failed"] and not row["finished"] else _NOTHING)
        else:
            deviation = "" if score["sd"] is None else f" ± {score['sd']:.{digits}f}"
            cells.append(f"{score['mean']:.{digits}f}{deviation}")
    smaller = name in _SMALLER or (name == results["selected_by"] and not results["larger_is_better"])
    # What each model measures with a scale of its own has no best.
    own = any(
        test["signatures"].get(name) == OWN_VECTORS for run in results["runs"] for test in run.get("tests", {}).values()
    )
    return _Column(group, label, cells, frozenset() if own else _best(found, not smaller))


def _digits(found: Sequence[Mapping[str, Any] | None]) -> int:
    largest = max((abs(score["mean"]) for score in found if score is not None), default=0.0)
    return 2 if largest >= 10 else 3


def _best(found: Sequence[Mapping[str, Any] | None], larger: bool = True) -> frozenset[int]:
    """The rows with the best mean, where there are others that it is better than."""
    means = {row: score["mean"] for row, score in enumerate(found) if score is not None}
    if len(set(means.values())) < 2:
        return frozenset()
    best = (max if larger else min)(means.values())
    return frozenset(row for row, mean in means.items() if mean == best)


def _notes(results: Mapping[str, Any], mark: str) -> Iterator[str]:
    """What one has to know to read the table of a comparison."""
    chosen = chosen_options(get_task(results["task"]), results["options"])
    what = [results["task"], _written(chosen), f"preset {results['settings']['preset']}"]
    yield f"{', '.join(filter(None, what))}: {_budget(results)}"
    most = max(len(row["finished"]) for row in results["rows"])
    if most:
        spread = "Mean ± sample standard deviation over seeds." if most > 1 else "One seed: differences may be chance."
        yield f"{spread} {mark}: best mean. tokens/s: {results['tokens']} in a second of training."
    if results["baseline"] is not None:
        yield f"Δ: difference of the mean to that of {results['baseline']}."
    yield from reading_notes(results)
    yield from _software(results)


def reading_notes(results: Mapping[str, Any]) -> Iterator[str]:
    """How the scores in `results` came about, whatever table they are shown in."""
    search, label = results["search"], results["score_labels"]
    selected = label.get(results["selected_by"], results["selected_by"])
    decoding = "" if search is None or results["selected_by"] == "loss" else " of greedy output"
    beams = "" if search is None else f" ({_written({name: value for name, value in search.items() if value})})"
    yield f"Checkpoints are selected by validation {selected}{decoding}; the test scores are theirs{beams}."
    selected_on = results["data"]["valid"]["split"]
    if selected_on in (test["split"] for test in results["tests"].values()):
        yield f"{selected_on} is what they are selected on: of other text its scores would be somewhat worse."
    for row in results["rows"]:
        if row["match"] is not None:
            yield f"{row['row']}: d_ff {row['d_ff']:,}, as many parameters as {row['match']} or the closest to it."
    if results.get("from") is not None:
        yield f"Trained from the weights of {results['from']}; rows with @from=none from new weights."
    yield from _held_equal(results)
    yield from _signatures(results)
    for run in results["runs"]:
        if run["status"] == "failed":
            yield f"{run['row']}, seed {run['seed']} failed: {run['reason']}"


def _held_equal(results: Mapping[str, Any]) -> Iterator[str]:
    """What is the same for all rows; the seeds only where no row lacks one that another has."""
    seeds = {row["row"]: sorted(row["finished"]) for row in results["rows"] if row["finished"]}
    differ = any(own != next(iter(seeds.values())) for own in seeds.values())
    equal = "data and budget" if differ else "data, seeds and budget"
    yield f"All rows: the same {equal}, one tokenizer of {results['tokenizer']['pieces']:,} pieces."
    if differ:
        listed = "; ".join(f"{name} {', '.join(map(str, own))}" for name, own in seeds.items())
        yield f"Rows have different seeds, so a difference may be theirs: {listed}."


def _budget(results: Mapping[str, Any]) -> str:
    steps, minutes = results["budget"]["steps"], results["budget"]["minutes"]
    ends = [f"{steps:,} steps"] if steps else []
    ends += [f"{minutes:g} minutes of training"] if minutes else []
    return f"{' or '.join(ends)} for each run{', validation not counted' if minutes else ''}."


def _written(options: Mapping[str, Any]) -> str:
    """Options that are given."""
    there = {name.replace("_", " "): value for name, value in options.items() if value is not None}
    return ", ".join(
        (name if value else f"no {name}") if isinstance(value, bool) else f"{name} {value}"
        for name, value in there.items()
    )


def _signatures(results: Mapping[str, Any]) -> Iterator[str]:
    """What belongs to the test scores, each once however many runs say it."""
    label, lines = results["score_labels"], list[str]()
    for run in results["runs"]:
        for split, test in run.get("tests", {}).items():
            for name in ("truncated", "divided"):
                if test[name]:
                    lines.append(f"{split}: {test[name]} of {test['examples']} inputs over the maximum length {name}.")
            if test.get("skipped"):
                lines.append(f"{split}: {test['skipped']} malformed lines left out.")
            lines += [f"{label.get(name, name)}: {signature}" for name, signature in test["signatures"].items()]
            lines += [f"{label[name]} not computed: {reason}" for name, reason in test["not_computed"].items()]
    if any(line.endswith(OWN_VECTORS) for line in lines):
        lines.append("Similarities by a model's own embeddings do not compare between rows.")
    yield from dict.fromkeys(lines)


def _software(results: Mapping[str, Any]) -> Iterator[str]:
    runs = [run for run in results["runs"] if "versions" in run]
    if not runs:
        return
    versions = [run["versions"] for run in runs]
    days = sorted({run["date"][:10] for run in runs})
    if any(other != versions[0] for other in versions):
        yield "The runs were made by other versions or with other threads, each as results.json says."
    else:
        listed = ", ".join(f"{name} {version}" for name, version in versions[0].items())
        yield f"{listed}; {' to '.join(dict.fromkeys([days[0], days[-1]]))}."
