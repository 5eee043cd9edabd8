"""The page of a comparison, index.html: tables, figures, outputs and commands; nothing is loaded from elsewhere."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import cycle
from typing import Any

import matplotlib
import pandas as pd
from jinja2 import Environment
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..data.source import Split
from ..tasks.seq2seq import TextPairs
from ..training.run_folder import RunFolder
from .results import Results, Score, column, finished, read_outputs, reference_row
from .tables import difference_table, notes, score_columns, score_table

_OUTPUTS = 20
_COLOURS = [str(colour) for colour in matplotlib.colors.TABLEAU_COLORS.values()]
# The colour of texts and axes in a figure; the page replaces it by the colour of its text.
_INK = "#010203"
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
_STYLE: Any = dict.fromkeys(_INKED, _INK) | {"svg.fonttype": "none", "font.size": 9, "axes.grid": True}
_STYLE |= {"grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10}


def write_page(folder: RunFolder, results: Results, splits: Mapping[str, Split]) -> None:
    """Write index.html of the comparison in `folder`; `splits` are its tests."""
    rows, reference = [row["row"] for row in results["rows"]], reference_row(results)
    texts = {name: split for name, split in splits.items() if isinstance(split, TextPairs) and results["generation"]}
    pairs = {row: [row, reference] for row in rows if row != reference}
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    )
    bold = Markup("<b>{}</b>")
    colours = dict(zip(rows, cycle(_COLOURS), strict=False))
    page = template.render(
        results=results,
        reference=reference,
        colours=colours,
        scores=_tests_first(score_table(results, bold)),
        differences=_tests_first(difference_table(results, pairs, score_columns(results), bold)),
        trained=[row["row"] for row in results["rows"] if row["finished"]],
        notes=list(notes(results)),
        curves=list(_curves(folder, results, colours)),
        scatters=list(_scatters(results, colours)),
        outputs={name: _examples(folder, results, name, split) for name, split in texts.items()},
        commands=list(dict.fromkeys(command for run in results["runs"] for command in run.get("commands", []))),
    )
    folder.write_text("index.html", page)


def _tests_first(cells: pd.DataFrame) -> pd.DataFrame:
    return cells[sorted(cells, key=lambda name: name.startswith("validation "))]


def _curves(folder: RunFolder, results: Results, colours: Mapping[str, str]) -> Iterator[Markup]:
    """Training loss, validation loss and the score that selects, by step."""
    logs = pd.DataFrame(
        {**entry, "row": run["row"]}
        for run in finished(results)
        for entry in RunFolder(folder.path / run["folder"]).read_log()
    )
    selected = results["selected_by"]
    titles = {f"eval_{selected}": f"validation {results['score_labels'].get(selected, selected)}"}
    for name, title in ({"loss": "training loss", "eval_loss": "validation loss"} | titles).items():
        if name in logs:
            figure, axes = _figure("step", title)
            lines = logs.dropna(subset=[name]).groupby(["row", "step"])[name].agg(["mean", "std"]).fillna(0.0)
            for row in lines.index.unique("row"):
                line = lines.loc[row]
                axes.plot(line.index, line["mean"], color=colours[row], marker="." if len(line) < 50 else "")
                low, high = line["mean"] - line["std"], line["mean"] + line["std"]
                axes.fill_between(line.index, low, high, color=colours[row], alpha=0.2, linewidth=0)
            yield _svg(figure, title)


def _scatters(results: Results, colours: Mapping[str, str]) -> Iterator[Markup]:
    """The first score of each test against the parameters and the speed."""
    parameters = pd.Series({row["row"]: row["parameters"] / 1e6 for row in results["rows"]})
    sizes = {
        "parameters (millions)": parameters,
        f"{results['tokens']}/s in training": column(results, ("", "tokens_per_second")).groupby("row").mean(),
    }
    first: dict[str, tuple[str, Score]] = {}
    for title, score in score_columns(results).items():
        if score[0] in results["tests"] and (score[0] not in first or score[1] == results["selected_by"]):
            first[score[0]] = (title, score)
    for title, score in first.values():
        for name, size in sizes.items():
            figure, axes = _figure(name, title)
            for row, (mean, sd) in column(results, score).groupby("row").agg(["mean", "std"]).iterrows():
                axes.errorbar(size[row], mean, sd if sd > 0 else None, color=colours[str(row)], marker="o", capsize=3)
            yield _svg(figure, f"{title} against {name}")


def _figure(x: str, title: str) -> tuple[Figure, Axes]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axes = figure.subplots()
    axes.set(xlabel=x, title=title)
    return figure, axes


def _svg(figure: Figure, label: str) -> Markup:
    """The figure as an element of the page, with a description."""
    stream = io.StringIO()
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": label}):
        figure.savefig(stream, format="svg", transparent=True)
    text = re.sub(
        r'<metadata>.*?</metadata>| xmlns(:xlink)?="[^"]*"|(?<=<g) id="[^"]*"', "", stream.getvalue(), flags=re.S
    )
    text = text[text.index("<svg") + 4 :].replace(_INK, "currentColor")
    return Markup('<svg role="img" aria-label="{}"').format(label) + Markup(text)


def _examples(folder: RunFolder, results: Results, name: str, split: TextPairs) -> list[dict[str, Any]]:
    """Sources, references and the outputs of the first finished seed of each row, from all parts of a split."""
    runs = {run["row"]: run for run in reversed(finished(results))}
    outputs = {row: read_outputs(folder.path, run, name) for row, run in runs.items()}
    return [
        {
            "source": split.sources[line],
            "reference": split.targets[line],
            "outputs": {row["row"]: own[line] for row in results["rows"] if (own := outputs.get(row["row"]))},
        }
        for line in range(0, len(split), max(1, len(split) // _OUTPUTS))[:_OUTPUTS]
    ]
