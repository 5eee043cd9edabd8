"""The page of a comparison, index.html."""

import re
from pathlib import Path

from compare.conftest import Results, add_row, run_comparison
from synthesizer_lab.compare.page import write_page
from synthesizer_lab.training.run_folder import RunFolder


def _table(text: str, name: str) -> list[list[str]]:
    """The cells of a table; of marks only those for bold stay."""
    table = text.partition(f'<table id="{name}">')[2].partition("</table>")[0]
    lines = [re.findall(r"<t[hd]>(.*?)</t[hd]>", line) for line in table.split("<tr>")[1:]]
    return [[re.sub(r"<(?!/?b>).*?>", "", cell) for cell in line] for line in lines]


def test_a_comparison_has_a_page(corpus: Path, tmp_path: Path) -> None:
    results, _ = run_comparison(corpus, tmp_path / "out", "random,vanilla,dense@learning_rate=4e9", (0, 1))
    text = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    # Nothing is loaded from elsewhere.
    assert not re.search(r"<(script|link|img|iframe)|https?:|@import|url\((?!#)|(src|href)=\"(?!#)", text)
    scores = _table(text, "scores")
    assert [line[0] for line in scores[1:]] == ["random", "vanilla", "dense@learning_rate=4e9"]
    assert scores[3][1] == "0 of 2"
    # The reference is vanilla, and a failed row has no difference.
    assert [line[0] for line in _table(text, "differences")[1:]] == ["random"]
    # Training and validation loss and BLEU by step; test BLEU against parameters and speed.
    assert text.count("<svg") == 5
    outputs = tmp_path / "out/random/seed-0" / results["runs"][0]["tests"]["test"]["predictions"]
    for path in (corpus / "test.en", corpus / "test.de", outputs):
        assert all(line in text for line in path.read_text(encoding="utf-8").splitlines())
    assert all(command.split()[0] in text for command in results["runs"][0]["commands"])
    assert re.search(r"\(p [\d.]+, [\d.]+\)", text)


def test_a_score_is_bold_if_the_interval_of_its_difference_excludes_zero(tmp_path: Path, results: Results) -> None:
    add_row(results, "random", 38.7, 0.1)
    add_row(results, "dense", 60.0)
    write_page(RunFolder(tmp_path), results, {})
    for name in ("scores", "differences"):
        header, *lines = _table((tmp_path / "index.html").read_text(encoding="utf-8"), name)
        bold = {(line[0], title) for line in lines for title, cell in zip(header, line, strict=True) if "<b>" in cell}
        # `dense` has one seed, and the interval of `vanilla-control` includes 0.
        assert bold == {("random", f"{split} BLEU") for split in ("validation", "test_2016_flickr", "test_2017")}
