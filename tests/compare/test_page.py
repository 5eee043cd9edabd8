"""The page of a comparison, index.html."""

import re
from pathlib import Path

from compare.conftest import run_comparison


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
