"""Tables of a comparison, from results as results.json has them."""

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from synthetic_attention.compare.table import markdown_table, print_comparison
from synthetic_attention.metrics.embeddings import OWN_VECTORS


def _mean(mean: float, sd: float | None = None) -> dict[str, float | None]:
    return {"mean": mean, "sd": sd}


def _row(label: str, bleu: float | None, sd: float | None = None, difference: float = 0.0, **changes: Any) -> Any:
    """A row with two seeds, and half the BLEU on the second test."""
    scored = bleu is not None
    tests = {"test_2016_flickr": {"bleu": _mean(bleu or 0, sd)}, "test_2017": {"bleu": _mean((bleu or 0) / 2, sd)}}
    return {
        "row": label,
        "match": None,
        "d_ff": None,
        "parameters": 2093568,
        "seeds": [0, 1],
        "finished": [0, 1] if scored else [],
        "failed": [] if scored else [0, 1],
        "pending": [],
        "tokens_per_second": _mean(14476.4) if scored else None,
        "minutes": _mean(20.04) if scored else None,
        "validation": {"loss": _mean(1.7921, sd), "bleu": _mean(bleu or 0, sd)} if scored else {},
        "tests": tests if scored else {},
        "difference": {split: {"bleu": difference} for split in tests} if scored else {},
        **changes,
    }


def _run(label: str, seed: int = 0, **changes: Any) -> Any:
    test = {"signatures": {"bleu": "tok:13a"}, "truncated": 2, "divided": 0, "skipped": 3}
    test |= {"examples": 1000, "not_computed": {}}
    return {
        "row": label,
        "seed": seed,
        "status": "finished",
        "commands": ["synthesizer compare translation --seeds 0,1"],
        "versions": {"torch": "2.13.0", "threads": 1},
        "date": "2026-11-21T12:00:00+00:00",
        "tests": {"test_2017": test},
        **changes,
    }


@pytest.fixture
def results() -> dict[str, Any]:
    return {
        "task": "translation",
        "options": {"source": "en", "target": "de"},
        "settings": {"preset": "tiny"},
        "budget": {"steps": None, "minutes": 20.0},
        "score_labels": {"bleu": "BLEU", "chrf": "chrF"},
        "selected_by": "bleu",
        "larger_is_better": True,
        "tokens": "source + target tokens",
        "tokenizer": {"pieces": 6000},
        "data": {"train": {"split": "train"}, "valid": {"split": "val"}},
        "tests": {"test_2016_flickr": {"split": "test_2016_flickr"}, "test_2017": {"split": "test_2017"}},
        "search": {"beams": 4, "length_penalty": 0.6},
        "baseline": "vanilla",
        "rows": [
            _row("vanilla", 37.7, 0.31),
            _row("vanilla-control", 38.0, 0.25, 0.3, match="random+vanilla", d_ff=1274),
            _row("a|b", None),
        ],
        "runs": [
            _run("vanilla"),
            _run("vanilla", 1, date="2026-11-22T01:00:00+00:00"),
            _run("vanilla-control"),
            {"row": "a|b", "seed": 0, "status": "failed", "reason": "out of memory"},
        ],
    }


def _printed(results: dict[str, Any], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, _environ={})
    print_comparison(results, console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_test_that_was_selected_on_is_said(results: dict[str, Any]) -> None:
    assert "are selected on" not in markdown_table(results)
    results["tests"]["valid"] = {"split": "val"}
    assert "- val is what they are selected on: of other text" in markdown_table(results)


def test_markdown_has_everything(results: dict[str, Any]) -> None:
    table, notes, commands = markdown_table(results).split("\n\n")
    header, _, vanilla, control, failed = table.split("\n")
    assert header == (
        "| synthesizer | seeds | parameters | tokens/s | minutes | validation BLEU | validation loss | "
        "test_2016_flickr BLEU | test_2016_flickr Δ BLEU | test_2017 BLEU | test_2017 Δ BLEU |"
    )
    assert vanilla == (
        "| vanilla | 2 | 2,093,568 | 14,476 | 20.0 | 37.70 ± 0.31 | 1.792 ± 0.310 | 37.70 ± 0.31 |  | 18.85 ± 0.31 |  |"
    )
    assert control == (
        "| vanilla-control | 2 | 2,093,568 | 14,476 | 20.0 | **38.00 ± 0.25** | 1.792 ± 0.250 | "
        "**38.00 ± 0.25** | +0.30 | **19.00 ± 0.25** | +0.30 |"
    )
    assert failed == r"| a\|b | 0 of 2 | 2,093,568 | – | – | failed | failed | failed | – | failed | – |"
    assert notes.split("\n") == [
        "- translation, source en, target de, preset tiny: 20 minutes of training for each run, validation not "
        "counted.",
        "- Mean ± sample standard deviation over seeds. Bold: best mean. tokens/s: source + target tokens in a second "
        "of training.",
        "- Δ: difference of the mean to that of vanilla.",
        "- Checkpoints are selected by validation BLEU of greedy output; the test scores are theirs (beams 4, length "
        "penalty 0.6).",
        "- vanilla-control: d_ff 1,274, as many parameters as random+vanilla or the closest to it.",
        "- All rows: the same data, seeds and budget, one tokenizer of 6,000 pieces.",
        "- test_2017: 2 of 1000 inputs over the maximum length truncated.",
        "- test_2017: 3 malformed lines left out.",
        "- BLEU: tok:13a",
        "- a|b, seed 0 failed: out of memory",
        "- torch 2.13.0, threads 1; 2026-11-21 to 2026-11-22.",
    ]
    assert commands == "```console\nsynthesizer compare translation --seeds 0,1\n```\n"


@pytest.mark.parametrize(
    ("task", "options", "shown"),
    [
        (
            "translation",
            {"source": "en", "target": "de", "column": "translation", "subset": None},
            "source en, target de, ",
        ),
        ("language-modeling", {"packed": True, "mode": "sentences", "train_files": None}, "packed, "),
        ("classification", {"text": 1, "breaks": False, "classes": None}, "text 1, no breaks, "),
        ("span-corruption", {"density": 0.15}, ""),
    ],
)
def test_options_are_shown_where_they_are_not_as_usual(
    results: dict[str, Any], task: str, options: dict[str, Any], shown: str
) -> None:
    results.update(task=task, options=options)
    assert f"- {task}, {shown}preset tiny: " in markdown_table(results)


def test_a_wide_terminal_has_one_table(results: dict[str, Any]) -> None:
    lines = _printed(results, 150)
    assert sum("synthesizer " in line for line in lines) == 1
    (control,) = [line for line in lines if line.startswith(" vanilla-control ")]
    assert " ".join(control.split()) == (
        "vanilla-control 2 2,093,568 14,476 20.0 38.00 ± 0.25 * 1.792 ± 0.250 38.00 ± 0.25 * +0.30 19.00 ± 0.25 * +0.30"
    )
    assert "a|b, seed 0 failed: out of memory" in lines


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_has_several_none_too_wide(results: dict[str, Any], width: int) -> None:
    lines = _printed(results, width)
    assert max(map(cell_len, lines)) <= width
    tables = sum("synthesizer " in line for line in lines)
    assert tables > 1
    # Neither labels nor numbers are broken.
    assert sum(line.startswith(" vanilla-control ") for line in lines) == tables
    assert "\n".join(lines).count("38.00 ± 0.25 *") == 2
    assert not any("…" in line for line in lines)


def test_long_labels_are_folded(results: dict[str, Any]) -> None:
    results["rows"][0]["row"] = "{encoder: [dense, random, random, vanilla], decoder: vanilla}"
    assert max(map(cell_len, _printed(results, 80))) <= 80


def test_without_a_baseline_there_is_no_difference(results: dict[str, Any]) -> None:
    results["baseline"] = None
    assert "Δ" not in markdown_table(results)


def test_one_seed_has_no_deviation(results: dict[str, Any]) -> None:
    for row in results["rows"]:
        row["finished"] = row["finished"][:1]
        for scores in (row["validation"], *row["tests"].values()):
            for score in scores.values():
                score["sd"] = None
    text = markdown_table(results)
    assert "±" not in text
    assert "| 1 of 2 |" not in text
    assert "One seed: differences may be chance." in text


def test_a_loss_is_better_if_it_is_smaller(results: dict[str, Any]) -> None:
    results |= {"score_labels": {"perplexity": "perplexity"}, "selected_by": "perplexity", "larger_is_better": False}
    results |= {"search": None, "tests": {}}
    for row, loss in zip(results["rows"], (3.0, 2.0, 4.0), strict=True):
        row["validation"] = {"loss": _mean(loss), "perplexity": _mean(10 * loss)}
    _, _, vanilla, control, *_ = markdown_table(results).split("\n")
    assert vanilla.endswith("| 30.00 | 3.000 |")
    assert control.endswith("| **20.00** | **2.000** |")
    assert "selected by validation perplexity; the test scores are theirs." in markdown_table(results)


def test_a_score_that_was_not_computed_is_a_dash_and_a_reason(results: dict[str, Any]) -> None:
    results["rows"][0]["tests"]["test_2017"]["chrf"] = _mean(61.2)
    results["runs"][0]["tests"]["test_2017"]["not_computed"] = {"chrf": "needs Java"}
    _, _, vanilla, control, *_ = (text := markdown_table(results)).split("\n")
    assert vanilla.endswith("|  | 61.20 |")
    assert control.endswith("| +0.30 | – |")
    assert "- chrF not computed: needs Java" in text


def test_a_score_that_no_row_has_keeps_its_column(results: dict[str, Any]) -> None:
    for run in results["runs"][:3]:
        run["tests"]["test_2017"]["not_computed"] = {"chrf": "needs Java"}
    header, _, vanilla, control, failed, *_ = markdown_table(results).split("\n")
    assert header.endswith("test_2017 Δ BLEU | test_2017 chrF |")
    assert vanilla.endswith("|  | needs Java |")
    assert control.endswith("| needs Java |")
    assert failed.endswith("| failed |")
    for run in results["runs"][:3]:
        run["tests"]["test_2017"]["not_computed"] = {"chrf": "something that is long to say"}
    assert "| not computed |\n" in markdown_table(results)


def test_what_each_model_measures_with_its_own_scale_has_no_best(results: dict[str, Any]) -> None:
    for row, score in zip(results["rows"], (50.0, 60.0), strict=False):
        row["tests"]["test_2017"]["chrf"] = _mean(score)
    assert "**60.00**" in markdown_table(results)
    for run in results["runs"][:3]:
        run["tests"]["test_2017"]["signatures"] = {"chrf": OWN_VECTORS}
    text = markdown_table(results)
    assert "| 60.00 |" in text
    assert "- Similarities by a model's own embeddings do not compare between rows.\n" in text


def test_options_of_the_search_are_named(results: dict[str, Any]) -> None:
    results["search"] |= {"max_tokens": None, "min_tokens": 0, "no_repeat_ngram": 3, "split_long": True}
    assert "(beams 4, length penalty 0.6, no repeat ngram 3, split long)" in markdown_table(results)


def test_what_is_not_done_yet_is_a_dash(results: dict[str, Any]) -> None:
    results["rows"][2] |= {"failed": [], "pending": [0, 1]}
    results["rows"][1] |= {"finished": [0], "pending": [1]}
    _, _, _, control, pending, *_ = markdown_table(results).split("\n")
    assert "| 1 of 2 |" in control
    assert pending.startswith(r"| a\|b | 0 of 2 | 2,093,568 | – | – | – | – |")


def test_seeds_that_differ_are_said(results: dict[str, Any]) -> None:
    results["rows"][1] |= {"seeds": [0], "finished": [0]}
    text = markdown_table(results)
    assert "- All rows: the same data and budget, one tokenizer" in text
    assert "- Rows have different seeds, so a difference may be theirs: vanilla 0, 1; vanilla-control 0.\n" in text


def test_versions_that_differ_are_said(results: dict[str, Any]) -> None:
    results["runs"][1]["versions"] = {"torch": "2.12.0", "threads": 1}
    assert "The runs were made by other versions or with other threads" in markdown_table(results)
