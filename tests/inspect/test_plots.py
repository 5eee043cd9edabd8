"""The page of an inspection shows text as text."""

from pathlib import Path
from typing import Any

import numpy as np

from synthesizer_lab.inspect.collect import AttentionMaps
from synthesizer_lab.inspect.inspection import make_page
from synthesizer_lab.inspect.plots import draw_attention, save


def test_a_page_shows_text_as_text() -> None:
    place = {"stack": "<2>", "layer": 1}
    numbers: dict[str, Any] = {"attention": [{**place, "synthesizer": "R & α", "heads": [{"entropy": 0.12345}]}]}
    text = make_page("run <1>", {**numbers, "gates": []}, texts=[("<script>alert(1)</script>", {"map": '"A"'})])
    for shown in ("run &lt;1&gt;", "R &amp; α", "&lt;script&gt;", ">0.12<", "&lt;2&gt;", 'alt="&#34;A&#34;"'):
        assert shown in text
    assert "<script>" not in text
    assert 'src="map.png"' in text


def test_a_character_that_no_font_has_is_drawn(tmp_path: Path) -> None:
    labels = ("target token", ["$a"])
    figure = draw_attention(AttentionMaps("Attention", ["dense"], [np.ones((1, 1, 1))], labels, labels, False))
    figure.suptitle("\ue001")
    save(figure, tmp_path / "map.png")
    assert (tmp_path / "map.png").exists()
