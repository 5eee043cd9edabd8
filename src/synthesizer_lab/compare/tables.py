"""The table of a comparison, as Markdown and as text, and the notes to read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd

from ..metrics.embeddings import OWN_VECTORS
from ..tasks import get_task
from .results import FAILED, FINISHED, Results, Score, column, measurements, with_status

NOTHING = "–"
# Smaller values of these scores are better, whichever score selects the checkpoint.
_SMALLER = {"bits_per_byte", "invalid", "loss", "perplexity", "word_perplexity"}


def score_columns(results: Results) -> dict[tuple[str, str], Score]:
    """The scores that are shown, by the two lines of their header: the group and the name."""
    found, columns = measurements(results).columns, dict[tuple[str, str], Score]()
    for group in ("validation", *results["tests"]):
        labels = results["score_labels"] | ({"loss": "loss"} if group == "validation" else {})
        keys = [name for own, name in found if own == group]
        keys += [name for split, test in _tests(results) if split == group for name in test["not_computed"]]
        shown = {name: label for name, label in labels.items() if name in keys} or {name: name for name in keys}
        columns |= {(group, label): (group, name) for name, label in shown.items()}
        # The selected checkpoint may be of an early step.
        if group == "validation" and results["selected_by"] != "loss" and ("last", "loss") in found:
            columns[group, "loss, last step"] = ("last", "loss")
    return columns


def is_smaller_better(results: Results, score: Score) -> bool:
    """Whether smaller values of a score are better."""
    return score[1] in _SMALLER or (score[1] == results["selected_by"] and not results["larger_is_better"])


def digits(values: pd.Series) -> int:
    """The decimals to print of a score, a column of `measurements`."""
    return 2 if values.groupby(level="row").mean().abs().max() >= 10 else 3


def table(results: Results, best: str = "**{}**") -> pd.DataFrame:
    """The cells: a line for each row, columns with the two lines of their header; `best` marks the best of a column."""
    rows, numbers = results["rows"], measurements(results)
    unfinished = [f" of {len(row['seeds'])}" if row["failed"] or row["pending"] else "" for row in rows]
    cells = {
        ("", "seeds"): [f"{len(row['finished'])}{rest}" for row, rest in zip(rows, unfinished, strict=True)],
        ("", "parameters"): [f"{row['parameters']:,}" for row in rows],
        ("", "tokens/s"): _cells(results, numbers, ("", "tokens_per_second"), ",.0f", best),
        ("", "minutes"): _cells(results, numbers, ("", "minutes"), ".1f"),
    }
    for header, score in score_columns(results).items():
        cells[header] = _cells(results, numbers, score, f".{digits(column(numbers, score))}f", best)
    return pd.DataFrame(cells, index=[row["row"] for row in rows])


def _cells(results: Results, numbers: pd.DataFrame, score: Score, form: str, best: str = "{}") -> list[str]:
    """Mean ± standard deviation of each row; of speeds the mean."""
    values = column(numbers, score).dropna().groupby(level="row")
    means, sds, cells = values.mean(), values.std(), []
    # Similarities that each model measures with its own embeddings do not compare.
    own = any(split == score[0] and test["signatures"].get(score[1]) == OWN_VECTORS for split, test in _tests(results))
    winner = None if own else _best(-means if is_smaller_better(results, score) else means, sds)
    for row in results["rows"]:
        label, is_score = row["row"], bool(score[0])
        if label not in means:
            cells.append("failed" if is_score and row["failed"] and not row["finished"] else NOTHING)
            continue
        cell = f"{means[label]:{form}}"
        if is_score and pd.notna(sds[label]):
            cell += f" ± {sds[label]:{form}}"
        cells.append(best.format(cell) if label == winner else cell)
    return cells


def _best(means: pd.Series, sds: pd.Series) -> str | None:
    """The row with the largest mean, if its interval mean ± sd overlaps no other row's; else None."""
    if len(means) < 2:
        return None
    # A row with one seed has no deviation of its own; assume the largest of the others.
    sds, best = sds.fillna(sds.max()).fillna(0.0), means.idxmax()
    return str(best) if (means[best] - sds[best] > (means + sds).drop(best)).all() else None


def _tests(results: Results) -> Iterator[tuple[str, Results]]:
    """The split and the scores of each test in the table."""
    for run in with_status(results, FINISHED):
        yield from ((split, run["tests"][split]) for split in results["tests"])


def choose(known: Mapping[tuple[str, str], Any], names: Iterable[str]) -> list[Any]:
    """The values of columns by their whole names.

    Raises:
        ValueError: there is no column of a name.
    """
    named = {" ".join(header).strip(): value for header, value in known.items()}
    if missing := [name for name in names if name not in named]:
        raise ValueError(f"got the columns {'; '.join(missing)}; expected some of: {'; '.join(named)}")
    return [named[name] for name in names]


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
    cells = table(results)
    for name, figures in (published or {}).items():
        cells["", f"*{name}*"] = [f"*{figures[row]}*" if row in figures else "" for row in cells.index]
    shown = {name: name for name in (" ".join(header).strip() for header in cells)} if shown is None else shown
    columns = choose({header: cells[header] for header in cells}, shown)
    return markdown_lines([["synthesizer", *shown.values()], *zip(cells.index, *columns, strict=True)])


def markdown_lines(lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first line is its header."""
    header, *rows = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---", *["---:"] * (len(header) - 1)], *rows))


def markdown_page(results: Results) -> str:
    """The table, the notes to read it, and the commands that made it, as Markdown."""
    listed = "".join(f"- {note}\n" for note in notes(results))
    commands = "\n".join(dict.fromkeys(command for run in results["runs"] for command in run.get("commands", [])))
    return f"{markdown_table(results)}\n{listed}" + (f"\n```console\n{commands}\n```\n" if commands else "")


def terminal_page(results: Results, width: int) -> str:
    """The table and the notes to read it as text; columns that are too wide together stand below one another."""
    cells, parts = table(results, "{} *"), [list[Any]()]
    for header in cells:
        if parts[-1] and max(map(len, cells[[*parts[-1], header]].to_string().splitlines())) > width:
            parts.append([])
        parts[-1].append(header)
    return "\n\n".join([*(cells[part].to_string() for part in parts), "\n".join(notes(results, "*"))]) + "\n"


def notes(results: Results, mark: str = "Bold") -> Iterator[str]:
    """The lines below the table: what was run, and how to read the scores; `mark` is how the best is shown."""
    defaults = {field.name: field.default for field in fields(get_task(results["task"]))}
    chosen = {name: value for name, value in results["options"].items() if value != defaults.get(name)}
    about = [results["task"], *_written(chosen), f"preset {results['settings']['preset']}"]
    steps, minutes = results["budget"]["steps"], results["budget"]["minutes"]
    ends = ([f"{steps:,} steps"] if steps else []) + ([f"{minutes:g} minutes without validation"] if minutes else [])
    yield f"{', '.join(about)}: {' or '.join(ends)} for each run."
    best = f" {mark}: best mean, if its interval overlaps no other; of one seed, perhaps by chance." if mark else ""
    yield f"Mean ± sample standard deviation over seeds.{best}"
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
    for run in with_status(results, FAILED):
        yield f"{run['row']}, seed {run['seed']} failed: {run['reason']}"
    if finished := with_status(results, FINISHED):
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
