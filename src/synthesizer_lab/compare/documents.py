"""Tables of documents, filled from saved results: each figure has one source.

    python -m synthesizer_lab.compare.documents [--runs runs]

With --runs, the results of its experiments are added to those in benchmarks/results first, without settings and
outputs; so the runs of an experiment may be trained on several machines. In a document, a comment says which table
stands below it, with the columns to show, renamed after "=":

    <!-- results translation-en-de: seeds; validation BLEU; test_2016_flickr BLEU = test BLEU -->

or the differences between the experiment's pairs of rows: the t interval over seeds, and the p-values of the paired
bootstrap that the comparison computed for each seed:

    <!-- intervals translation-en-de: test_2016_flickr BLEU = test BLEU -->

In the first cell of a row, a comment states a claim about a score: one synthesizer has a larger or smaller mean than
another, or is behind it by less than a number. The third and fourth cells become the difference with its 95 % interval,
and whether the whole interval agrees. They stay as they are while one of the two has no saved results:

    | nearly as good <!-- claim translation-en-de: random > vanilla within 1; test_2016_flickr BLEU --> | −0.4 | … | … |
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from .experiments import Experiment, read_experiments
from .results import FINISHED, Results, difference, finished, merge, read_results
from .tables import check_columns, difference_table, markdown, score_columns, score_table

RESULTS = Path("benchmarks/results")
DOCUMENTS = (Path("README.md"), Path("docs/results.md"), Path("docs/claims.md"))
_TABLE = re.compile(r"^(<!-- (results|intervals) ([\w-]+): (.+?) -->\n\n)(?:\|.*\n)*\n?", re.MULTILINE)
_CLAIM = re.compile(
    r"^(\|[^|\n]*<!-- claim ([\w-]+): (\S+) ([<>]) (\S+)(?: within ([\d.]+))?; (.+?) --> \|[^|\n]*\|)"
    r"[^|\n]*\|[^|\n]*\|",
    re.MULTILINE,
)
# What the tables and their notes need of a run. Other conditions are those of the experiment's command.
_OF_RUN = ("row", "seed", "status", "reason", "date", "versions", "validation", "last", "tests", "metrics")
_OF_METRICS = ("steps", "minutes", "tokens", "tokens_per_second", "parameters")
_OF_TEST = ("examples", "truncated", "skipped", "scores", "signatures", "not_computed")


def condense(results: Results) -> dict[str, Any]:
    """The results of a comparison without settings, commands and paths."""
    runs = [_some(run, _OF_RUN) for run in results["runs"]]
    for run in runs:
        if run["status"] == FINISHED:
            run["metrics"] = _some(run["metrics"], _OF_METRICS)
            run["tests"] = {split: _some(test, _OF_TEST) for split, test in run["tests"].items()}
    # Results of earlier versions have no p-values.
    return {**results, "from": None, "runs": runs, "bootstrap": results.get("bootstrap", [])}


def _some(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def fill(text: str, folder: Path, experiments: Mapping[str, Experiment]) -> str:
    """The document with the tables and verdicts of the results in `folder`.

    Raises:
        ValueError: a table has no results, a claim no experiment, or either a column that the results do not have.
    """
    saved = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}

    def table(match: re.Match[str]) -> str:
        comment, kind, name, listed = match.groups()
        if name not in experiments or name not in saved:
            raise ValueError(f"got a table of {name!r}; expected an experiment with results in {folder}")
        results, experiment = saved[name], experiments[name]
        entries = (entry.partition("=") for entry in listed.split(";"))
        shown = {known.strip(): title.strip() or known.strip() for known, _, title in entries}
        if kind == "intervals":
            corner = "difference, 95 % interval"
            cells = difference_table(results, experiment.named_pairs(), score_columns(results), others=saved)
        else:
            cells, corner = score_table(results), "synthesizer"
            for title, figures in experiment.published.get("columns", {}).items():
                cells[f"*{title}*"] = [f"*{figures[row]}*" if row in figures else "" for row in cells.index]
        check_columns(shown, cells)
        return f"{comment}{markdown(cells[[*shown]].rename(columns=shown), corner)}\n"

    def judged(match: re.Match[str]) -> str:
        start, name, first, relation, second, margin, shown = match.groups()
        if name not in experiments or not {first, second} <= {*experiments[name].rows()}:
            raise ValueError(f"got a claim about {first} and {second} of {name!r}; expected rows of an experiment")
        cells = _verdict(saved[name], first, second, relation, float(margin or 0), shown) if name in saved else None
        return f"{start} {cells} |" if cells else match[0]

    return _CLAIM.sub(judged, _TABLE.sub(table, text))


def _verdict(results: Results, first: str, second: str, relation: str, margin: float, shown: str) -> str | None:
    """The difference of two rows with its interval, and whether it agrees with a claim; None if a row has no score."""
    check_columns([shown], scores := score_columns(results))
    found = difference(results, [first, second], scores[shown])
    if found is None:
        return None
    verdict = f"inconclusive{found.remark.partition(' (p ')[0]}"
    if found.interval is not None:
        low, high = found.interval if relation == ">" else (-found.interval[1], -found.interval[0])
        verdict = "agrees" if low > -margin else "disagrees" if high < -margin else "inconclusive"
    means = " − ".join(f"{mean:.{found.places}f}" for mean in found.means)
    return f"{means.replace('-', '−')} = {found.numbers} | {verdict}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Add results if asked to, and fill the tables of all documents; returns the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="the --output of compare.experiments, whose results to add")
    runs = parser.parse_args(arguments).runs
    experiments = read_experiments()
    try:
        if runs is not None:
            _add(runs, experiments)
        for document in DOCUMENTS:
            document.write_text(fill(document.read_text(encoding="utf-8"), RESULTS, experiments), encoding="utf-8")
    except ValueError as error:
        parser.error(str(error))
    return 0


def _add(runs: Path, experiments: Mapping[str, Experiment]) -> None:
    """Add the results of experiments with a finished run to those that are saved."""
    found = {name: results for name in experiments if finished(results := read_results(runs / name))}
    if not found:
        raise UserError(f"got --runs {runs}; expected a folder with the results of experiments")
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, results in found.items():
        experiment, path = experiments[name], RESULTS / f"{name}.json"
        short = condense(results)
        # Runs that start from other runs have those of one machine.
        if path.exists() and not experiment.after:
            try:
                short = merge(json.loads(path.read_text(encoding="utf-8")), short, experiment.rows())
            except UserError as error:
                raise UserError(f"{path}: {error}") from None
        path.write_text(f"{json.dumps(short, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
