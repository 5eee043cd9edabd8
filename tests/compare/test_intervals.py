"""Differences between rows: t intervals over seeds, and the paired bootstrap on outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from compare.conftest import Results, run_comparison, set_score
from synthesizer_lab.compare.documents import fill
from synthesizer_lab.compare.experiments import Experiment
from synthesizer_lab.compare.results import difference, paired_bootstrap, t_interval
from synthesizer_lab.tasks.translation import Translation

PAIR = ["vanilla-control", "vanilla"]
BLEU = ("test_2016_flickr", "bleu")


def test_scores_without_variance_have_an_interval_only_if_they_are_equal() -> None:
    same, other, varied = (pd.Series(values) for values in ([2.0, 2.0], [1.0, 1.0], [1.0, 2.0, 3.0]))
    assert t_interval(same, other) is None
    assert t_interval(pd.Series([52.7] * 3), pd.Series([52.7] * 2)) == (0.0, 0.0)
    assert t_interval(same, varied) == pytest.approx((-2.484, 2.484), abs=1e-3)
    assert t_interval(same[:1], other) is None


@pytest.mark.parametrize(
    ("control", "loss", "texts"),
    [
        # An sd of 0.1 with two seeds each: half the width is 4.303 · 0.1.
        ((38.2, 0.1), (1.0, 0.1), ["+0.50 [+0.07, +0.93] ahead", "−0.792 [−1.222, −0.362] ahead"]),
        ((37.2, 0.1), (2.5, 0.1), ["−0.50 [−0.93, −0.07] behind", "+0.708 [+0.278, +1.138] behind"]),
        ((38.0, 0.1), (2.0, 0.1), ["+0.30 [−0.13, +0.73]", "+0.208 [−0.222, +0.638]"]),
        ((38.2, None), (2.0, None), ["+0.50 (one seed)", "+0.208 (one seed)"]),
    ],
)
def test_a_row_is_ahead_if_the_interval_excludes_zero(
    results: Results, control: tuple[float, float | None], loss: tuple[float, float | None], texts: list[str]
) -> None:
    if control[1] is None:
        del results["runs"][3]
    set_score(results, "vanilla-control", *BLEU, *control)
    set_score(results, "vanilla-control", "validation", "loss", *loss)
    found = [difference(results, PAIR, score) for score in (BLEU, ("validation", "loss"))]
    assert [str(each) for each in found] == texts
    clear = [each is not None and each.is_clear for each in found]
    assert clear == ["ahead" in text or "behind" in text for text in texts]
    assert difference(results, ["a|b", "vanilla"], BLEU) is None
    for row in PAIR:
        set_score(results, row, *BLEU, 30.0 + len(row), 0.0)
    assert str(difference(results, PAIR, BLEU)) == f"+8.00 ({'one seed' if control[1] is None else 'no variance'})"


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
    test = Translation("en", "de").records(corpus, "test").load()
    results["bootstrap"] = paired_bootstrap(results, output, {"test": test})
    first, second = results["bootstrap"]
    assert (first["rows"], first["split"], first["seed"], second["seed"]) == (["random", "vanilla"], "test", 0, 1)
    assert {*first["p"]} == {"bleu", "chrf"}
    assert second["p"]["bleu"] < 0.01 < 0.1 < first["p"]["bleu"]
    (tmp_path / "mt.json").write_text(json.dumps(results))
    experiments = {"mt": Experiment(commands=[], pairs=[["random", "vanilla"], ["random", "absent"]])}
    filled = fill("<!-- intervals mt: test BLEU -->\n\n| old |\n", tmp_path, experiments)
    header, _, line = filled.strip().splitlines()[2:]
    assert header == "| difference, 95 % interval | test BLEU |"
    assert line.startswith("| random − vanilla | ")
    assert line.endswith(f" (p {first['p']['bleu']:.3f}, {second['p']['bleu']:.3f}) |")
