"""Figures show the numbers that they are given; the page shows text as text."""

from pathlib import Path

import numpy as np

from synthesizer_lab.inspect.collect import AttentionMaps
from synthesizer_lab.inspect.page import Page
from synthesizer_lab.inspect.plots import draw_attention


def _maps(weights: list[np.ndarray], is_causal: bool = False) -> AttentionMaps:
    _, rows, columns = weights[0].shape
    labels = [("target token", [f"$a{i}" for i in range(n)]) for n in (rows, columns)]
    return AttentionMaps("Cross-attention", ["dense+vanilla"] * len(weights), weights, *labels, is_causal)


def test_a_page_shows_text_as_text(tmp_path: Path) -> None:
    page = Page(tmp_path, "run <1>")
    page.add_section("R & α", "<script>alert(1)</script>")
    page.add_table([{"head": 0.12345, "x": "<2>"}])
    figure = draw_attention(_maps([np.ones((1, 1, 1))]))
    # No font has this character.
    figure.suptitle("\ue001")
    page.add_picture(figure, "map", '"A"')
    page.write()
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    for shown in ("run &lt;1&gt;", "R &amp; α", "&lt;script&gt;", "0.12", "&lt;2&gt;", 'alt="&quot;A&quot;"'):
        assert shown in text
    assert "<script>" not in text
    assert 'src="map.png"' in text
