"""Tables and their notes, from results as results.json has them."""

from compare.conftest import Results, add_row
from synthesizer_lab.compare.tables import markdown_page


def test_markdown_has_table_notes_and_commands(results: Results) -> None:
    add_row(results, "dense", 38.7, 0.1)
    table, notes, commands = markdown_page(results).split("\n\n")
    header, _, vanilla, control, failed, dense = table.split("\n")
    assert header == (
        "| synthesizer | seeds | parameters | tokens/s | minutes | validation BLEU | validation loss | "
        "validation loss, last step | test_2016_flickr BLEU | test_2017 BLEU |"
    )
    assert vanilla == (
        "| vanilla | 2 | 2,093,568 | 14,476 | 20.0 | 37.70 ± 0.10 | 1.792 ± 0.100 | 1.790 ± 0.100 | 37.70 ± 0.10 | "
        "18.85 ± 0.10 |"
    )
    # Half the width of its interval is 1.41.
    assert "**" not in control
    assert dense.endswith("| **38.70 ± 0.10** | 1.792 ± 0.100 | 1.790 ± 0.100 | **38.70 ± 0.10** | **19.35 ± 0.10** |")
    assert failed == r"| a\|b | 0 of 1 | 2,093,568 | – | – | – | – | – | – | – |"
    for fact in (
        "source en, target de, preset tiny: 20 minutes",
        "Bold: the 95 % interval of the difference to vanilla excludes 0.",
        "(num_beams 4, length_penalty 0.6)",
        "vanilla-control: d_ff 1,274, as many parameters as random+vanilla",
        "the same data, one tokenizer of 6,000 tokens",
        "test_2017: 2 of 1000 inputs over the maximum length truncated",
        "test_2017: 3 malformed lines",
        "BLEU: tok:13a",
        "a|b, seed 0 failed: out of memory",
        "torch 2.13.0, threads 1; 2026-11-21 to 2026-11-22",
    ):
        assert notes.count(fact) == 1, fact
    assert commands == "```console\nsynthesizer compare translation --seeds 0,1\n```\n"


def test_rows_without_a_finished_run_are_shown(results: Results) -> None:
    results["tests"]["test_2017"], results["generation"] = {"split": "val"}, None
    assert " | minutes | validation loss | " in markdown_page(results)
    results["rows"][1] |= {"finished": [0], "pending": [1]}
    assert "| 1 of 2 |" in markdown_page(results).splitlines()[3]
    results["rows"], results["runs"] = results["rows"][2:], results["runs"][4:]
    results["rows"][0] |= {"seeds": [0, 1], "failed": [], "pending": [0, 1]}
    results.update(task="classification", options={"text": 1, "regression": True, "classes": None})
    page = markdown_page(results)
    assert page.splitlines()[2] == r"| a\|b | 0 of 2 | 2,093,568 | – | – |"
    for line in ("- classification, text 1, regression True, preset tiny: ", "- val also selected the checkpoints"):
        assert line in page
