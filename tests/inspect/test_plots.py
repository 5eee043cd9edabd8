"""The page of an inspection shows text as text."""

from pathlib import Path

import numpy as np

from synthesizer_lab.inspect.collect import AttentionMaps
from synthesizer_lab.inspect.page import Page
from synthesizer_lab.inspect.plots import draw_attention


def test_a_page_shows_text_as_text(tmp_path: Path) -> None:
    page = Page(tmp_path, "run <1>")
    page.add_section("R & α", "<script>alert(1)</script>")
    page.add_table([{"head": 0.12345, "x": "<2>"}])
    labels = ("target token", ["$a"])
    figure = draw_attention(AttentionMaps("Attention", ["dense"], [np.ones((1, 1, 1))], labels, labels, False))
    # No font has this character.
    figure.suptitle("\ue001")
    page.add_picture(figure, "map", '"A"')
    page.write()
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    for shown in ("run &lt;1&gt;", "R &amp; α", "&lt;script&gt;", "0.12", "&lt;2&gt;", 'alt="&quot;A&quot;"'):
        assert shown in text
    assert "<script>" not in text
    assert 'src="map.png"' in text
