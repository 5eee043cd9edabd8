"""Figures show the numbers that they are given; the page shows text as text."""

from pathlib import Path

import numpy as np
import pytest

from synthesizer_lab.inspect.collect import AttentionMaps
from synthesizer_lab.inspect.page import Page
from synthesizer_lab.inspect.plots import draw_attention, draw_gates, draw_histograms
from synthesizer_lab.inspect.statistics import EDGES


def _maps(weights: list[np.ndarray], is_causal: bool = False) -> AttentionMaps:
    _, rows, columns = weights[0].shape
    labels = [("target token", [f"$a{i}" for i in range(n)]) for n in (rows, columns)]
    return AttentionMaps("Cross-attention", ["dense+vanilla"] * len(weights), weights, *labels, is_causal)


def test_heat_maps_have_tokens_and_hide_masked_keys() -> None:
    weights = [np.random.default_rng(0).dirichlet(np.ones(5), size=(3, 5)) for _ in range(2)]
    figure = draw_attention(_maps(weights, is_causal=True))
    panels = [axes for axes in figure.axes if axes.images]
    assert len(panels) == 6
    assert [label.get_text() for label in panels[0].get_yticklabels()] == [f"$a{i}" for i in range(5)]
    assert [label.get_text() for label in panels[3].get_xticklabels()] == [f"$a{i}" for i in range(5)]
    shown = panels[4].images[0].get_array()
    assert (shown.mask == ~np.tril(np.ones((5, 5), dtype=bool))).all()
    assert np.array_equal(shown.data, weights[1][1])
    assert {label.get_parse_math() for label in panels[0].get_yticklabels()} == {False}
    # The darkest color is the largest weight, without the row that sees one key.
    assert panels[4].images[0].norm.vmax == max(np.tril(layer)[:, 1:].max() for layer in weights)


def test_histograms() -> None:
    after = np.zeros(len(EDGES) - 1)
    after[[3, 40]] = 1, 3
    entry = {"synthesizer": "random+vanilla", "histogram": after.tolist()}
    layers = [{**entry, "stack": "encoder", "layer": n} for n in (1, 2)]
    figure = draw_histograms([*layers, {**entry, "stack": "cross", "layer": 1}])
    assert len(figure.axes) == 3
    (filled,) = figure.axes[0].patches
    assert filled.get_data().values.tolist() == (after / 4).tolist()
    # Three of four weights are in bin 40, so the median is too.
    assert figure.axes[0].lines[0].get_xdata()[0] == pytest.approx(EDGES[41])


def test_mixture_weights_over_training() -> None:
    """A panel for each layer that has a mixture, a line for each head."""

    def gate(stack: str, layer: int, **alphas: list[float]) -> dict[str, object]:
        history = [{"step": step, "alpha": alphas} for step in (10, 20)]
        return {"stack": stack, "layer": layer, "alpha": alphas, "history": history}

    both = {"random": [0.6, 0.7], "vanilla": [0.4, 0.3]}
    figure = draw_gates([gate("encoder", 2, **both), gate("encoder", 3, **both), gate("decoder", 3, dense=[0.5])])
    titles = ["encoder, layer 2", "encoder, layer 3", "decoder, layer 3"]
    assert [axes.get_title() for axes in figure.axes] == titles
    lines = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in figure.axes[1].lines]
    assert lines == [([10, 20], [alpha] * 2) for alpha in (0.6, 0.7, 0.4, 0.3)]
    assert [text.get_text() for text in figure.axes[1].get_legend().get_texts()] == ["random", "vanilla"]


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
