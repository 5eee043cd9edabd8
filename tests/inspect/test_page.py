"""The page: everything on it is text, whatever it contains."""

from html.parser import HTMLParser

from synthetic_attention.inspect.page import Picture, Section, Table, render


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name == "src"]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page() -> None:
    folded = [Picture("c.png", "layer 1"), Picture("d.png", "layer 2")]
    section = Section(
        "R & α",
        ["<script>alert(1)</script>"],
        [Table(("head", "x"), [("1", "<2>")])],
        [Picture("a&b.png", '"A"')],
        folded,
    )
    reader = _Reader()
    reader.feed(render("run <1>", [section, Section("empty")]))
    assert "script" not in reader.tags
    assert reader.sources == ["a&b.png", "c.png", "d.png"]
    assert (reader.tags.count("td"), reader.tags.count("details")) == (2, 1)
    for text in ("run <1>", "R & α", "<script>alert(1)</script>", "<2>", '"A"', "more (2)"):
        assert text in reader.text
