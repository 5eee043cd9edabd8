"""The results of a comparison: means and standard deviations over seeds, and their table in Markdown and rich text."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..metrics.embeddings import OWN_VECTORS
from ..tasks import get_task
from ..tasks.options import chosen_options
from ..training.settings import parse_synthesizer

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["make_results", "markdown_page", "markdown_table", "notes", "print_comparison", "read_runs"]

FINISHED, FAILED, PENDING = "finished", "failed", "pending"
_SPEEDS = ("tokens_per_second", "minutes", "steps")
# Without disturbance, the speeds of two rows differ by less than this factor beyond the cost of their models.
_TOLERANCE = 2.0
_NOTHING = "–"
# Smaller values of these scores are better, whichever score selects the checkpoint.
_SMALLER = {"bits_per_byte", "invalid", "loss", "perplexity", "word_perplexity"}
Results = Mapping[str, Any]


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """The runs in results.json; none if the file is missing or damaged, so that all are scored again."""
    try:
        runs = json.loads((folder / "results.json").read_text(encoding="utf-8"))["runs"]
        return [run for run in runs if {"row", "seed"} <= run.keys()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def make_results(plan: Plan, runs: Sequence[Results]) -> dict[str, Any]:
    """The content of results.json: what the runs share, every row over its seeds, every run."""
    by_row = {row: [run for run in runs if run["row"] == row.label] for row in plan.seeds}
    task, training = plan.comparison.task, plan.settings["training"]
    tests = {split.name: split.fingerprint() for split in plan.tests.values()}
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
        "larger_is_better": task.greater_is_better,
        "tokens": task.tokens_name,
        "tests": tests,
        "generation": plan.generation,
        "warnings": list(throughput_warnings(plan, runs)),
        "rows": [
            {
                "row": row.label,
                "synthesizer": parse_synthesizer(row.synthesizer),
                "overrides": list(row.overrides),
                "match": row.match,
                "d_ff": plan.sizes[row].d_ff,
                "parameters": plan.sizes[row].parameters,
                **_summarize_row(mine, tests),
            }
            for row, mine in by_row.items()
        ],
        "runs": [dict(run) for run in runs],
    }


def throughput_warnings(plan: Plan, runs: Sequence[Results]) -> Iterator[str]:
    """Warn of runs of a budget in minutes that were slower than the cost of their models explains."""
    finished = _finished(runs)
    if not finished or plan.settings["training"]["minutes"] is None:
        return
    cost = {row.label: size.cost for row, size in plan.sizes.items()}
    fastest = max(finished, key=_speed)
    for run in finished:
        slower, explained = _speed(fastest) / _speed(run), max(1.0, cost[run["row"]] / cost[fastest["row"]])
        if slower > _TOLERANCE * explained:
            steps = [
                f"{each['row']}, seed {each['seed']}: {each['metrics']['steps']:,} steps" for each in (run, fastest)
            ]
            yield (
                f"WARNING: {'; '.join(steps)}. The first was {slower:.1f} times slower, but its model costs at most "
                f"{explained:.1f} times as much: the machine was probably busy. Remove its folder "
                "to train it again, or give all rows the same --steps."
            )


def _speed(run: Results) -> float:
    return float(run["metrics"]["tokens_per_second"])


def _summarize_row(runs: Sequence[Results], splits: Iterable[str]) -> dict[str, Any]:
    finished = _finished(runs)
    return {
        "seeds": [run["seed"] for run in runs],
        **{status: [run["seed"] for run in runs if run["status"] == status] for status in (FINISHED, FAILED, PENDING)},
        **{name: _summarize(run["metrics"][name] for run in finished) if finished else None for name in _SPEEDS},
        "validation": _scores([run["validation"]["scores"] for run in finished]),
        # Of the last step, not of the selected checkpoint.
        "last": _scores([run["last"]["scores"] for run in finished]),
        "tests": {split: _scores([run["tests"][split]["scores"] for run in finished]) for split in splits},
    }


def _finished(runs: Sequence[Results]) -> list[Results]:
    return [run for run in runs if run["status"] == FINISHED]


def _scores(found: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    # Some runs may lack a score that could not be computed.
    names = dict.fromkeys(name for scores in found for name in scores)
    return {name: _summarize(scores[name] for scores in found if name in scores) for name in names}


def _summarize(values: Iterable[float]) -> dict[str, float | int | None]:
    numbers = list(values)
    sd = statistics.stdev(numbers) if len(numbers) > 1 else None
    return {"mean": statistics.fmean(numbers), "sd": sd, "n": len(numbers)}


@dataclass(frozen=True)
class _Column:
    """A column of the table: `group` is the split it belongs to, `best` the row that is better than all others."""

    group: str
    name: str
    cells: Sequence[str]
    best: int | None = None


def markdown_page(results: Results) -> str:
    """The table, the notes to read it, and the commands that made it, as Markdown."""
    listed = "".join(f"- {note}\n" for note in notes(results))
    commands = dict.fromkeys(command for run in results["runs"] for command in run.get("commands", []))
    shown = "\n".join(commands)
    return f"{markdown_table(results)}\n{listed}" + (f"\n```console\n{shown}\n```\n" if commands else "")


def markdown_table(results: Results, published: Mapping[str, Mapping[str, float]] | None = None) -> str:
    """The table as Markdown.

    Args:
        published: figures of others to show beside ours, by column and row.
    """
    columns = [column for group in _groups(results) for column in group]
    labels = [row["row"] for row in results["rows"]]
    for name, figures in (published or {}).items():
        columns.append(_Column("", f"*{name}*", [f"*{figures[row]}*" if row in figures else "" for row in labels]))
    lines = [["synthesizer", *(f"{column.group} {column.name}".strip() for column in columns)]]
    for index, label in enumerate(labels):
        cells = [f"**{column.cells[index]}**" if index == column.best else column.cells[index] for column in columns]
        lines.append([label, *cells])
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    lines.insert(1, ["---", *["---:"] * len(columns)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def print_comparison(results: Results, console: Console) -> None:
    """Print the table and its notes; on a narrow terminal each group of columns becomes a table of its own."""
    groups = _groups(results)
    whole = _rich_table(results, [column for group in groups for column in group])
    width = console.measure(whole, options=console.options.update(max_width=10_000)).maximum
    tables = [whole] if width <= console.width else [_rich_table(results, group) for group in groups]
    for table in tables:
        console.print(table)
    for note in notes(results, "*"):
        console.print(Text(note))


def _rich_table(results: Results, columns: Sequence[_Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("synthesizer", vertical="bottom", overflow="fold", max_width=32)
    for column in columns:
        table.add_column(f"{column.group}\n{column.name}".strip(), justify="right", vertical="bottom")
    for index, row in enumerate(results["rows"]):
        cells = [
            Text(f"{column.cells[index]} *", style="bold") if index == column.best else Text(column.cells[index])
            for column in columns
        ]
        table.add_row(Text(row["row"]), *cells)
    return table


def _groups(results: Results) -> list[list[_Column]]:
    """The columns: those of the runs, of the validation, and of each split."""
    rows = results["rows"]
    seeds = [f"{len(r['finished'])}" + (f" of {len(r['seeds'])}" if r["failed"] or r["pending"] else "") for r in rows]
    speeds, minutes = ([row[name] for row in rows] for name in ("tokens_per_second", "minutes"))
    runs = [
        _Column("", "seeds", seeds),
        _Column("", "parameters", [f"{row['parameters']:,}" for row in rows]),
        _Column("", "tokens/s", [f"{s['mean']:,.0f}" if s else _NOTHING for s in speeds], _best(speeds)),
        _Column("", "minutes", [f"{m['mean']:.1f}" if m else _NOTHING for m in minutes]),
    ]
    labels = results["score_labels"]
    groups = [runs, _score_columns(results, "validation", {**labels, "loss": "loss"}, [r["validation"] for r in rows])]
    if results["selected_by"] != "loss":
        # The selected checkpoint may be of an early step.
        groups[1] += _score_columns(results, "validation", {"loss": "loss, last step"}, [r["last"] for r in rows])
    for split in results["tests"]:
        groups.append(_score_columns(results, split, labels, [row["tests"].get(split, {}) for row in rows]))
    return groups


def _score_columns(
    results: Results, group: str, labels: Mapping[str, str], found: Sequence[Mapping[str, Any]]
) -> list[_Column]:
    """Columns for the labelled scores in `found`, or for all if none has a label."""
    missing = (test["not_computed"] for split, test in _tests(results) if split == group)
    names = dict.fromkeys(chain(*found, *missing))
    shown = {name: label for name, label in labels.items() if name in names} or {name: name for name in names}
    return [
        _score_column(results, group, name, label, [scores.get(name) for scores in found])
        for name, label in shown.items()
    ]


def _tests(results: Results) -> Iterator[tuple[str, Results]]:
    """The split and the scores of each test in the table."""
    for run in _finished(results["runs"]):
        yield from ((split, run["tests"][split]) for split in results["tests"])


def _score_column(
    results: Results, group: str, name: str, label: str, found: Sequence[Mapping[str, Any] | None]
) -> _Column:
    largest = max((abs(score["mean"]) for score in found if score is not None), default=0.0)
    digits, cells = 2 if largest >= 10 else 3, []
    for row, score in zip(results["rows"], found, strict=True):
        if score is None:
            cells.append("failed" if row["failed"] and not row["finished"] else _NOTHING)
        else:
            deviation = "" if score["sd"] is None else f" ± {score['sd']:.{digits}f}"
            cells.append(f"{score['mean']:.{digits}f}{deviation}")
    if any(test["signatures"].get(name) == OWN_VECTORS for _, test in _tests(results)):
        # Each model measures with its own embeddings: there is no best.
        return _Column(group, label, cells)
    is_smaller = name in _SMALLER or (name == results["selected_by"] and not results["larger_is_better"])
    return _Column(group, label, cells, _best(found, larger=not is_smaller))


def _best(found: Sequence[Mapping[str, Any] | None], larger: bool = True) -> int | None:
    """The row with the best mean, if its interval mean ± sd overlaps no other row's; else None."""
    scores = {row: score for row, score in enumerate(found) if score is not None}
    if len(scores) < 2:
        return None
    # A row with one seed has no deviation of its own; assume the largest of the others.
    assumed = max((score["sd"] for score in scores.values() if score["sd"] is not None), default=0.0)
    means = {row: score["mean"] if larger else -score["mean"] for row, score in scores.items()}
    sds = {row: assumed if score["sd"] is None else score["sd"] for row, score in scores.items()}
    best = max(means, key=means.__getitem__)
    others = [row for row in scores if row != best]
    return best if all(means[best] - sds[best] > means[row] + sds[row] for row in others) else None


def notes(results: Results, mark: str = "Bold") -> Iterator[str]:
    """The lines below the table: what was run, and how to read the scores."""
    yield from results.get("warnings", [])
    chosen = chosen_options(get_task(results["task"]), results["options"])
    about = [results["task"], _written(chosen), f"preset {results['settings']['preset']}"]
    steps, minutes = results["budget"]["steps"], results["budget"]["minutes"]
    ends = ([f"{steps:,} steps"] if steps else []) + ([f"{minutes:g} minutes without validation"] if minutes else [])
    yield f"{', '.join(filter(None, about))}: {' or '.join(ends)} for each run."
    most = max(len(row["finished"]) for row in results["rows"])
    best = "best mean, if its interval overlaps no other" if most > 1 else "best value of one seed, perhaps by chance"
    yield f"Mean ± sample standard deviation over seeds. {mark}: {best}."
    yield f"tokens/s: {results['tokens']} per second of training."
    yield from _selection(results)
    for row in results["rows"]:
        if row["match"] is not None:
            yield f"{row['row']}: d_ff {row['d_ff']:,}, as many parameters as {row['match']} or the closest to it."
    if results.get("from") is not None:
        yield f"Trained from the weights of {results['from']}; rows with @from=none from new weights."
    yield from _held_equal(results)
    yield from _scoring(results)
    for run in results["runs"]:
        if run["status"] == "failed":
            yield f"{run['row']}, seed {run['seed']} failed: {run['reason']}"
    yield from _software(results)


def _selection(results: Results) -> Iterator[str]:
    generation = results["generation"]
    selected = results["score_labels"].get(results["selected_by"], results["selected_by"])
    greedy = "" if generation is None or results["selected_by"] == "loss" else " of greedy output"
    given = {name: value for name, value in (generation or {}).items() if value}
    options = f" ({_written(given)})" if given else ""
    yield f"Checkpoints are selected by validation {selected}{greedy}; these are tested{options}."
    selected_on = results["data"]["valid"]["split"]
    if selected_on in (test["split"] for test in results["tests"].values()):
        yield f"{selected_on} also selected the checkpoints; scores on unseen text would be somewhat worse."


def _held_equal(results: Results) -> Iterator[str]:
    yield f"All rows: the same data and budget, one tokenizer of {results['tokenizer']['size']:,} tokens."
    seeds = {row["row"]: ", ".join(map(str, sorted(row["finished"]))) for row in results["rows"] if row["finished"]}
    if len(set(seeds.values())) > 1:
        listed = "; ".join(f"{name} {own}" for name, own in seeds.items())
        yield f"Rows have different seeds, which may explain a difference: {listed}."


def _written(options: Mapping[str, Any]) -> str:
    there = {name.replace("_", " "): value for name, value in options.items() if value is not None}
    return ", ".join(
        (name if value else f"no {name}") if isinstance(value, bool) else f"{name} {value}"
        for name, value in there.items()
    )


def _scoring(results: Results) -> Iterator[str]:
    """Long inputs, signatures and missing scores; each line once, however many runs have it."""
    labels, lines = results["score_labels"], list[str]()
    for split, test in _tests(results):
        for name in ("truncated", "divided"):
            if test[name]:
                lines.append(f"{split}: {test[name]} of {test['examples']} inputs over the maximum length {name}.")
        if test["skipped"]:
            lines.append(f"{split}: {test['skipped']} malformed lines skipped.")
        lines += [f"{labels.get(name, name)}: {signature}" for name, signature in test["signatures"].items()]
        lines += [f"{labels[name]} not computed: {reason}" for name, reason in test["not_computed"].items()]
    if any(line.endswith(OWN_VECTORS) for line in lines):
        lines.append("Similarities by a model's own embeddings do not compare between rows.")
    yield from dict.fromkeys(lines)


def _software(results: Results) -> Iterator[str]:
    runs = [run for run in results["runs"] if "versions" in run]
    if runs:
        listed = [", ".join(f"{name} {value}" for name, value in run["versions"].items()) for run in runs]
        days = sorted({run["date"][:10] for run in runs})
        yield f"{' and '.join(dict.fromkeys(listed))}; {' to '.join(dict.fromkeys([days[0], days[-1]]))}."
