"""Tables of documents, from the results in benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compare.conftest import Results, add_row
from documents import ROOT
from synthesizer_lab.compare.documents import DOCUMENTS, RESULTS, condense, fill
from synthesizer_lab.compare.experiments import Experiment, read_experiments
from synthesizer_lab.compare.tables import markdown_page


def test_the_tables_of_documents_are_those_of_the_results() -> None:
    experiments = read_experiments(ROOT / "benchmarks/experiments.yaml")
    texts = [(ROOT / document).read_text(encoding="utf-8") for document in DOCUMENTS]
    for text in texts:
        assert fill(text, ROOT / RESULTS, experiments) == text
    for path in (ROOT / RESULTS).glob("*.json"):
        assert any(f"<!-- results {path.stem}: " in text for text in texts), path


def test_results_are_copied_without_paths(results: Results) -> None:
    for run in results["runs"]:
        run |= {"commands": ["/home/me"], "settings": {}}
    short = condense(results)
    assert "/home/me" not in json.dumps(short)
    assert markdown_page(short) == markdown_page({**results, "runs": short["runs"]})


@pytest.mark.parametrize(
    ("claim", "cells"),
    [
        ("vanilla-control > vanilla", "38.20 − 37.70 = +0.50 [−0.91, +1.91] | inconclusive"),
        ("vanilla-control > vanilla within 1", "38.20 − 37.70 = +0.50 [−0.91, +1.91] | agrees"),
        ("dense > vanilla", "34.70 − 37.70 = −3.00 [−3.43, −2.57] | disagrees"),
        ("dense < vanilla", "34.70 − 37.70 = −3.00 [−3.43, −2.57] | agrees"),
        ("random > vanilla", "37.80 − 37.70 = +0.10 | inconclusive (one seed)"),
        # Without a row, what was written stays.
        ("fixed_random > vanilla", "ours | old"),
    ],
)
def test_verdicts_follow_from_intervals(tmp_path: Path, results: Results, claim: str, cells: str) -> None:
    for row in (("dense", 34.7, 0.1), ("random", 37.8)):
        add_row(results, *row)
    names = "vanilla,vanilla-control,dense,random,fixed_random"
    experiments = {"mt": Experiment(commands=[f"synthesizer compare translation --synthesizers {names}"])}
    start = f"| it is so <!-- claim mt: {claim}; test_2016_flickr BLEU --> | +1 BLEU |"
    line = f"{start} ours | old | [section](#section) |\n"
    assert fill(line, tmp_path, experiments) == line
    (tmp_path / "mt.json").write_text(json.dumps(results))
    assert fill(line, tmp_path, experiments) == f"{start} {cells} | [section](#section) |\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<!-- results none: seeds -->\n\n", "'none'"),
        ("<!-- results mt: BLEV -->\n\n", "got the columns BLEV"),
        ("| it is so <!-- claim mt: randon > dense; valid BLEU --> | | | |\n", "randon"),
    ],
)
def test_tables_and_claims_without_results_rows_or_columns_are_refused(
    tmp_path: Path, results: Results, text: str, reason: str
) -> None:
    (tmp_path / "mt.json").write_text(json.dumps(results))
    commands = ["synthesizer compare translation --synthesizers random,dense"]
    with pytest.raises(ValueError, match=reason):
        fill(text, tmp_path, {"mt": Experiment(commands=commands)})
