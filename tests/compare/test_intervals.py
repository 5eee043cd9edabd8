"""Differences between rows: t intervals over seeds, the paired bootstrap on outputs, and their table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from compare.conftest import mean, run_comparison
from synthesizer_lab.compare.documents import condense, fill
from synthesizer_lab.compare.experiments import Experiment
from synthesizer_lab.compare.intervals import difference_table, paired_bootstrap, t_interval
from synthesizer_lab.errors import UserError

PAIR = ["vanilla-control", "vanilla"]


def _summary(values: list[float]) -> dict[str, float]:
    found = stats.describe(values)
    return {"mean": found.mean, "sd": found.variance**0.5, "n": found.nobs}


def test_the_interval_is_that_of_scipy() -> None:
    first, second = [35.4, 35.8, 35.7], [34.9, 35.4]
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.9)
    assert t_interval(_summary(first), _summary(second), 0.9) == pytest.approx((expected.low, expected.high))
    assert t_interval(mean(2.0), mean(1.0, 0.5)) is None
    assert t_interval(mean(2.0, 0.0), mean(1.0, 0.0)) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("control", "loss", "cells"),
    [
        # An sd of 0.1 with two seeds each: half the width is 4.303 · 0.1.
        ((38.2, 0.1), (1.0, 0.1), ["+0.50 [+0.07, +0.93] ahead", "−0.792 [−1.222, −0.362] ahead"]),
        ((37.2, 0.1), (2.5, 0.1), ["−0.50 [−0.93, −0.07] behind", "+0.708 [+0.278, +1.138] behind"]),
        ((38.0, 0.1), (2.0, 0.1), ["+0.30 [−0.13, +0.73]", "+0.208 [−0.222, +0.638]"]),
        ((38.2, None), (2.0, None), ["+0.50 (one seed)", "+0.208 (one seed)"]),
    ],
)
def test_a_row_is_ahead_if_the_interval_excludes_zero(
    results: dict[str, Any], control: tuple[float, float | None], loss: tuple[float, float | None], cells: list[str]
) -> None:
    results["rows"][1]["tests"]["test_2016_flickr"]["bleu"] = mean(*control)
    results["rows"][1]["validation"]["loss"] = mean(*loss)
    table = difference_table(
        results, [PAIR, ["a|b", "vanilla"]], {"test_2016_flickr BLEU": "BLEU", "validation loss": "loss"}
    )
    # The row without results is left out.
    header, _, line = table.splitlines()
    assert header == "| difference, 95 % interval | BLEU | loss |"
    assert line == f"| vanilla-control − vanilla | {' | '.join(cells)} |"


def test_a_row_of_another_experiment(results: dict[str, Any]) -> None:
    other = json.loads(json.dumps(results))
    other["rows"][1]["tests"]["test_2017"]["bleu"] = mean(20.0, 0.1)
    pairs = [["vanilla", {"control": "vanilla-control"}], ["vanilla", {"absent": "vanilla"}]]
    table = difference_table(results, pairs, {"test_2017 BLEU": "BLEU"}, {"control": other})
    assert table.splitlines()[2:] == [
        "| vanilla − control: vanilla-control | −1.15 [−1.58, −0.72] behind |",
    ]


def test_only_scores_have_differences(results: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="got the columns minutes"):
        difference_table(results, [PAIR], {"minutes": "minutes"})


def test_outputs_are_compared_seed_by_seed(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "mt"
    results, _ = run_comparison(corpus, output, "vanilla,random", (0, 1))
    references = (corpus / "test.de").read_text(encoding="utf-8").splitlines()
    # With seed 0 each row has every second line right; with seed 1 `random` has all, `vanilla` none.
    slices = {("vanilla", 0): references[::2], ("random", 0): references[1::2], ("random", 1): references}
    for run in results["runs"]:
        right = slices.get((run["row"], run["seed"]), [])
        text = "".join(f"{line if line in right else 'x'}\n" for line in references)
        (output / run["folder"] / run["tests"]["test"]["predictions"]).write_text(text, encoding="utf-8")
    pairs = [["random", "vanilla"], ["random", "absent"]]
    short = condense(results, output, pairs)
    first, second = short["bootstrap"]
    assert (first["rows"], first["split"], first["seed"], second["seed"]) == (pairs[0], "test", 0, 1)
    assert {*first["p"]} == {"bleu", "chrf"}
    assert second["p"]["bleu"] < 0.01 < 0.1 < first["p"]["bleu"]
    (tmp_path / "mt.json").write_text(json.dumps(short))
    experiments = {"mt": Experiment(name="mt", title="", commands=[], pairs=pairs[:1])}
    filled = fill("<!-- intervals mt: test BLEU -->\n\n| old |\n", tmp_path, experiments)
    assert filled.endswith(f" (p {first['p']['bleu']:.3f}, {second['p']['bleu']:.3f}) |\n\n")
    results["tests"]["test"]["pairs"] += 1
    with pytest.raises(UserError, match="other text in the split 'test'"):
        list(paired_bootstrap(results, output, pairs))
