"""The page of a comparison, index.html."""

import re
from html.parser import HTMLParser
from pathlib import Path

from compare.conftest import Results, add_row, run_comparison
from synthesizer_lab.compare.page import write_page
from synthesizer_lab.training.run_folder import RunFolder


class _Tables(HTMLParser):
    """The cells of the tables by their id: the first cell of a line, its other cells, and which of them are bold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.bold: dict[str, set[tuple[str, int]]] = {}
        self.tags: set[str] = set()
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag == "table":
            self.now = dict(attrs)["id"] or ""
            self.tables[self.now], self.bold[self.now] = [], set()
        elif tag == "tr":
            self.tables[self.now].append([])
        elif tag in ("td", "th"):
            self.tables[self.now][-1].append("")
        elif tag == "b":
            line = self.tables[self.now][-1]
            self.bold[self.now].add((line[0], len(line) - 1))

    def handle_data(self, data: str) -> None:
        if self.tables and self.tables[self.now] and self.tables[self.now][-1]:
            self.tables[self.now][-1][-1] += data.strip()


def test_a_comparison_has_a_page(corpus: Path, tmp_path: Path) -> None:
    results, _ = run_comparison(corpus, tmp_path / "out", "random,vanilla,dense@learning_rate=4e9", (0, 1))
    text = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    page = _Tables(text)
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    assert all(source.startswith("#") for source in page.sources)
    assert [line[0] for line in page.tables["scores"][1:]] == ["random", "vanilla", "dense@learning_rate=4e9"]
    # The reference is vanilla, and a failed row has no difference.
    assert [line[0] for line in page.tables["differences"][1:]] == ["random"]
    assert page.tables["scores"][3][1] == "0 of 2"
    # Training and validation loss and BLEU by step; test BLEU against parameters and speed.
    assert text.count("<svg") == 5
    sources, references = ((corpus / f"test.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de"))
    outputs = results["runs"][0]["tests"]["test"]["predictions"]
    outputs = (tmp_path / "out/random/seed-0" / outputs).read_text(encoding="utf-8").splitlines()
    assert all(line in text for line in (*sources, *references, *outputs))
    assert all(command.split()[0] in text for command in results["runs"][0]["commands"])
    bootstrap = re.search(r"\(p [\d.]+, [\d.]+\)", text)
    assert bootstrap


def test_a_score_is_bold_if_the_interval_of_its_difference_excludes_zero(tmp_path: Path, results: Results) -> None:
    add_row(results, "random", 38.7, 0.1)
    add_row(results, "dense", 60.0)
    write_page(RunFolder(tmp_path), results, {})
    page = _Tables((tmp_path / "index.html").read_text(encoding="utf-8"))
    for kind in ("scores", "differences"):
        names = [page.tables[kind][0][column] for _, column in sorted(page.bold[kind])]
        assert names == ["test_2016_flickr BLEU", "test_2017 BLEU", "validation BLEU"]
        # `dense` has one seed, and the interval of `vanilla-control` includes 0.
        assert {row for row, _ in page.bold[kind]} == {"random"}
