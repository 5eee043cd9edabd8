"""The results of a comparison: means and standard deviations over seeds, and their table in Markdown and rich text."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import UserError, damage_reported
from ..metrics.embeddings import OWN_VECTORS
from ..tasks import get_task
from ..tasks.base import tokens_name
from ..training.settings import parse_synthesizer

if TYPE_CHECKING:
    from .plan import Plan

FINISHED, FAILED, PENDING = "finished", "failed", "pending"
# Without disturbance, the speeds of two rows differ by less than this factor beyond the cost of their models.
_TOLERANCE = 2.0
_NOTHING = "–"
# Smaller values of these scores are better, whichever score selects the checkpoint.
_SMALLER = {"bits_per_byte", "invalid", "loss", "perplexity", "word_perplexity"}
# What belongs to the runs of a comparison, and what to a row whichever its runs are.
_OF_RUNS = {"rows", "runs", "warnings", "bootstrap", "from"}
_OF_ROW = ("synthesizer", "overrides", "match", "d_ff", "parameters")
Results = Mapping[str, Any]
Summary = Mapping[str, Any] | None


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """The runs in results.json; none if the file is missing or damaged, so that all are scored again."""
    with suppress(UserError), damage_reported(folder):
        runs = json.loads((folder / "results.json").read_text(encoding="utf-8"))["runs"]
        return [run for run in runs if {"row", "seed"} <= run.keys()]
    return []


def make_results(plan: Plan, runs: Sequence[Results]) -> dict[str, Any]:
    """The content of results.json: what the runs share, every row over its seeds, every run."""
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
        "larger_is_better": task.metric_for_best_model != "loss",
        "tokens": tokens_name(task),
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
                **_summarize_row([run for run in runs if run["row"] == row.label], tests),
            }
            for row in plan.seeds
        ],
        "runs": [dict(run) for run in runs],
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
        "rows": [{**rows[label], **_summarize_row(own[label], later["tests"])} for label in labels],
        "runs": [run for label in labels for run in own[label]],
        "bootstrap": sorted([*tests, *later["bootstrap"]], key=lambda test: (test["rows"], test["seed"])),
    }


def throughput_warnings(plan: Plan, runs: Sequence[Results]) -> Iterator[str]:
    """Warn of runs of a budget in minutes that were slower than the cost of their models explains."""
    speeds = [(run["metrics"]["tokens_per_second"], run) for run in _with_status(runs, FINISHED)]
    if not speeds or plan.settings["training"]["minutes"] is None:
        return
    cost = {row.label: size.cost for row, size in plan.sizes.items()}
    highest, fastest = max(speeds, key=lambda each: each[0])
    for speed, run in speeds:
        slower, explained = highest / speed, max(1.0, cost[run["row"]] / cost[fastest["row"]])
        if slower > _TOLERANCE * explained:
            steps = (
                f"{each['row']}, seed {each['seed']}: {each['metrics']['steps']:,} steps" for each in (run, fastest)
            )
            yield (
                f"WARNING: {'; '.join(steps)}. The first was {slower:.1f} times slower, but its model costs at most "
                f"{explained:.1f} times as much: the machine was probably busy. Remove its folder "
                "to train it again with fewer jobs at a time, or give all rows the same --steps."
            )


def _summarize_row(runs: Sequence[Results], splits: Iterable[str]) -> dict[str, Any]:
    finished, speeds = _with_status(runs, FINISHED), ("tokens_per_second", "minutes", "steps")
    return {
        "seeds": [run["seed"] for run in runs],
        **{status: [run["seed"] for run in _with_status(runs, status)] for status in (FINISHED, FAILED, PENDING)},
        **{name: _summarize(run["metrics"][name] for run in finished) if finished else None for name in speeds},
        "validation": _summarize_scores(run["validation"] for run in finished),
        # Of the last step, not of the selected checkpoint.
        "last": _summarize_scores(run["last"] for run in finished),
        "tests": {split: _summarize_scores(run["tests"][split] for run in finished) for split in splits},
    }


def _with_status(runs: Sequence[Results], status: str) -> list[Results]:
    return [run for run in runs if run["status"] == status]


def _summarize_scores(scored: Iterable[Results]) -> dict[str, Any]:
    # Some runs may lack a score that could not be computed.
    found = [each["scores"] for each in scored]
    return {name: _summarize(each[name] for each in found if name in each) for name in dict.fromkeys(chain(*found))}


def _summarize(values: Iterable[float]) -> dict[str, float | int | None]:
    numbers = list(values)
    sd = statistics.stdev(numbers) if len(numbers) > 1 else None
    return {"mean": statistics.fmean(numbers), "sd": sd, "n": len(numbers)}


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        group: the split it belongs to.
        best: the row that is better than all others.
        score, summaries, digits, is_smaller: of a score: its key, its mean and sd in each row, the digits to print, and
            whether smaller is better.
    """

    group: str
    name: str
    cells: Sequence[str]
    best: int | None = None
    score: str = ""
    summaries: Sequence[Summary] = ()
    digits: int = 2
    is_smaller: bool = False


def markdown_page(results: Results) -> str:
    """The table, the notes to read it, and the commands that made it, as Markdown."""
    listed = "".join(f"- {note}\n" for note in notes(results))
    commands = "\n".join(dict.fromkeys(chain(*(run.get("commands", []) for run in results["runs"]))))
    return f"{markdown_table(results)}\n{listed}" + (f"\n```console\n{commands}\n```\n" if commands else "")


def markdown_table(
    results: Results,
    published: Mapping[str, Mapping[str, float]] | None = None,
    shown: Mapping[str, str] | None = None,
) -> str:
    """The table as Markdown.

    Args:
        published: figures of others to show beside ours, by column and row.
        shown: the columns to show, in this order, with the names to give them; None for all as they are.

    Raises:
        ValueError: there is no column of a name.
    """
    labels, named = [row["row"] for row in results["rows"]], named_columns(results)
    for name, figures in (published or {}).items():
        cells = [f"*{figures[row]}*" if row in figures else "" for row in labels]
        named[f"*{name}*"] = Column("", f"*{name}*", cells)
    shown = {name: name for name in named} if shown is None else shown
    columns = choose(named, shown)
    lines = [["synthesizer", *shown.values()]]
    for index, label in enumerate(labels):
        cells = [f"**{column.cells[index]}**" if index == column.best else column.cells[index] for column in columns]
        lines.append([label, *cells])
    return markdown_lines(lines)


def named_columns(results: Results) -> dict[str, Column]:
    """The columns of the table by their whole names."""
    return {f"{column.group} {column.name}".strip(): column for column in chain(*_groups(results))}


def choose(named: Mapping[str, Column], names: Iterable[str]) -> list[Column]:
    """The columns of `names`.

    Raises:
        ValueError: there is no column of a name.
    """
    if missing := [name for name in names if name not in named]:
        raise ValueError(f"got the columns {'; '.join(missing)}; expected some of: {'; '.join(named)}")
    return [named[name] for name in names]


def markdown_lines(lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first line is its header."""
    header, *rows = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---", *["---:"] * (len(header) - 1)], *rows))


def print_comparison(results: Results, console: Console) -> None:
    """Print the table and its notes; on a narrow terminal each group of columns becomes a table of its own."""
    groups = _groups(results)
    whole = _rich_table(results, [*chain(*groups)])
    width = console.measure(whole, options=console.options.update(max_width=10_000)).maximum
    for table in [whole] if width <= console.width else [_rich_table(results, group) for group in groups]:
        console.print(table)
    for note in notes(results, "*"):
        console.print(Text(note))


def _rich_table(results: Results, columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("synthesizer", vertical="bottom", overflow="fold", max_width=32)
    for column in columns:
        table.add_column(f"{column.group}\n{column.name}".strip(), justify="right", vertical="bottom")
    for index, row in enumerate(results["rows"]):
        cells = (f"{column.cells[index]} *" if index == column.best else column.cells[index] for column in columns)
        table.add_row(Text(row["row"]), *map(Text, cells))
    return table


def _groups(results: Results) -> list[list[Column]]:
    """The columns: those of the runs, of the validation, and of each split."""
    rows, labels = results["rows"], results["score_labels"]
    seeds = [f"{len(r['finished'])}" + (f" of {len(r['seeds'])}" if r["failed"] or r["pending"] else "") for r in rows]
    speeds, minutes = ([row[name] for row in rows] for name in ("tokens_per_second", "minutes"))
    runs = [
        Column("", "seeds", seeds),
        Column("", "parameters", [f"{row['parameters']:,}" for row in rows]),
        Column("", "tokens/s", [f"{s['mean']:,.0f}" if s else _NOTHING for s in speeds], _best(speeds)),
        Column("", "minutes", [f"{m['mean']:.1f}" if m else _NOTHING for m in minutes]),
    ]
    validation = _score_columns(results, "validation", {**labels, "loss": "loss"}, [r["validation"] for r in rows])
    if results["selected_by"] != "loss":
        # The selected checkpoint may be of an early step.
        validation += _score_columns(results, "validation", {"loss": "loss, last step"}, [r["last"] for r in rows])
    tests = (
        _score_columns(results, name, labels, [r["tests"].get(name, {}) for r in rows]) for name in results["tests"]
    )
    return [runs, validation, *tests]


def _score_columns(
    results: Results, group: str, labels: Mapping[str, str], found: Sequence[Mapping[str, Any]]
) -> list[Column]:
    """Columns for the labelled scores in `found`, or for all if none has a label."""
    tests = [test for split, test in _tests(results) if split == group]
    names = dict.fromkeys(chain(*found, *(test["not_computed"] for test in tests)))
    shown, columns = {name: label for name, label in labels.items() if name in names}, []
    for name, label in (shown or {name: name for name in names}).items():
        summaries = [scores.get(name) for scores in found]
        largest = max((abs(score["mean"]) for score in summaries if score is not None), default=0.0)
        digits = 2 if largest >= 10 else 3
        cells = [_cell(row, score, digits) for row, score in zip(results["rows"], summaries, strict=True)]
        is_smaller = name in _SMALLER or (name == results["selected_by"] and not results["larger_is_better"])
        best = _best(summaries, larger=not is_smaller)
        if any(test["signatures"].get(name) == OWN_VECTORS for test in tests):
            # Each model measures with its own embeddings.
            best = None
        columns.append(Column(group, label, cells, best, name, summaries, digits, is_smaller))
    return columns


def _cell(row: Results, score: Summary, digits: int) -> str:
    if score is None:
        return "failed" if row["failed"] and not row["finished"] else _NOTHING
    return f"{score['mean']:.{digits}f}" + ("" if score["sd"] is None else f" ± {score['sd']:.{digits}f}")


def _tests(results: Results) -> Iterator[tuple[str, Results]]:
    """The split and the scores of each test in the table."""
    for run in _with_status(results["runs"], FINISHED):
        yield from ((split, run["tests"][split]) for split in results["tests"])


def _best(found: Sequence[Summary], larger: bool = True) -> int | None:
    """The row with the best mean, if its interval mean ± sd overlaps no other row's; else None."""
    scores = {row: score for row, score in enumerate(found) if score is not None}
    # A row with one seed has no deviation of its own; assume the largest of the others.
    assumed = max((score["sd"] for score in scores.values() if score["sd"] is not None), default=0.0)
    means = {row: score["mean"] if larger else -score["mean"] for row, score in scores.items()}
    sds = {row: assumed if score["sd"] is None else score["sd"] for row, score in scores.items()}
    best = max(means, key=means.__getitem__, default=0)
    others = [row for row in scores if row != best]
    return best if others and all(means[best] - sds[best] > means[row] + sds[row] for row in others) else None


def notes(results: Results, mark: str = "Bold") -> Iterator[str]:
    """The lines below the table: what was run, and how to read the scores."""
    yield from results.get("warnings", [])
    defaults = {field.name: field.default for field in fields(get_task(results["task"]))}
    chosen = {name: value for name, value in results["options"].items() if value != defaults.get(name)}
    about = [results["task"], *_written(chosen), f"preset {results['settings']['preset']}"]
    steps, minutes = results["budget"]["steps"], results["budget"]["minutes"]
    ends = ([f"{steps:,} steps"] if steps else []) + ([f"{minutes:g} minutes without validation"] if minutes else [])
    yield f"{', '.join(about)}: {' or '.join(ends)} for each run."
    yield (
        f"Mean ± sample standard deviation over seeds. {mark}: best mean, if its interval overlaps no other; of one "
        "seed, perhaps by chance."
    )
    yield f"tokens/s: {results['tokens']} per second of training."
    selected = results["score_labels"].get(results["selected_by"], results["selected_by"])
    generation = ", ".join(_written(results["generation"] or {}))
    yield f"Checkpoints are selected by validation {selected}; these are tested{generation and f' ({generation})'}."
    selected_on = results["data"]["valid"]["split"]
    if selected_on in (test["split"] for test in results["tests"].values()):
        yield f"{selected_on} also selected the checkpoints; scores on unseen text would be somewhat worse."
    for row in results["rows"]:
        if row["match"] is not None:
            yield f"{row['row']}: d_ff {row['d_ff']:,}, as many parameters as {row['match']} or the closest to it."
    if results.get("from") is not None:
        yield f"Trained from the weights of {results['from']}; rows with @from=none from new weights."
    seeds = {row["row"]: ", ".join(map(str, sorted(row["finished"]))) for row in results["rows"] if row["finished"]}
    if len({*seeds.values()}) > 1:
        listed = "; ".join(f"{name} {own}" for name, own in seeds.items())
        yield f"Rows have different seeds, which may explain a difference: {listed}."
    yield f"All rows: the same data and budget, one tokenizer of {results['tokenizer']['size']:,} tokens."
    yield from dict.fromkeys(_scoring(results))
    for run in _with_status(results["runs"], FAILED):
        yield f"{run['row']}, seed {run['seed']} failed: {run['reason']}"
    if finished := _with_status(results["runs"], FINISHED):
        versions = (", ".join(f"{name} {value}" for name, value in run["versions"].items()) for run in finished)
        days = sorted({run["date"][:10] for run in finished})
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
            yield f"{labels.get(name, name)}: {signature}"
            if signature == OWN_VECTORS:
                yield "Similarities by a model's own embeddings do not compare between rows."
        yield from (f"{labels[name]} not computed: {reason}" for name, reason in test["not_computed"].items())
