"""Pictures: what is on them, and that nothing lies over anything else."""

import warnings
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from synthetic_attention.compare.statistics import EDGES
from synthetic_attention.inspect.biases import StackBiases, draw_biases
from synthetic_attention.inspect.figures import glyphs_reported, grid_shape, save
from synthetic_attention.inspect.gates import LayerGates, draw_gates
from synthetic_attention.inspect.histograms import LayerHistogram, draw_histograms
from synthetic_attention.inspect.maps import AttentionMap, draw_layer, draw_overview
from synthetic_attention.tables import LayerTable, draw_table


def _map(heads: int, rows: int, columns: int, is_causal: bool = False, word: str = "␣Wörter") -> AttentionMap:
    weights = np.random.default_rng(0).dirichlet(np.ones(columns), size=(heads, rows))
    labels = [[f"{word}{i}" for i in range(n)] for n in (rows, columns)]
    return AttentionMap("Cross-attention", 2, "dense", weights, *labels, "target token", "source token", is_causal)


def _drawn(figure: Figure) -> Figure:
    FigureCanvasAgg(figure).draw()
    return figure


def _check_no_overlap(figure: Figure) -> None:
    """No two labels of an axis overlap, nor the titles and names of panels, and none leaves the figure."""
    seen = [axes for axes in figure.axes if axes.get_visible()]
    texts = [axes.title for axes in seen] + [axes.yaxis.label for axes in seen] + [figure._suptitle, *figure.legends]
    boxes = [text.get_window_extent() for text in texts if not isinstance(text, Text) or text.get_text()]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    for axes in figure.axes:
        for axis, along in ((axes.xaxis, "x"), (axes.yaxis, "y")):
            low, high = sorted(axis.get_view_interval())
            # An axis may have ticks beyond its ends, which are not drawn.
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            labels = [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]
            boxes = [label.get_window_extent() for label in labels if axes.get_visible() and label.get_text()]
            spans = sorted((getattr(box, f"{along}0"), getattr(box, f"{along}1")) for box in boxes)
            assert all(end <= start + 1 for (_, end), (start, _) in pairwise(spans))
            assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
            assert all(figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1 for box in boxes)


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (2, (1, 2)), (4, (2, 2)), (6, (2, 3)), (7, (2, 4)), (8, (2, 4)), (16, (4, 4))]
)
def test_panels_are_about_as_wide_as_a_slide(count: int, shape: tuple[int, int]) -> None:
    assert grid_shape(count) == shape


def test_the_shapes_of_many_heads() -> None:
    for count in range(1, 65):
        rows, columns = grid_shape(count)
        assert rows * columns - columns < count <= rows * columns
        assert columns / rows <= 3


@pytest.mark.parametrize(("heads", "rows", "columns"), [(1, 5, 9), (4, 5, 9), (7, 3, 2), (9, 20, 24), (2, 90, 150)])
def test_heads_with_tokens(heads: int, rows: int, columns: int) -> None:
    figure = _drawn(draw_layer(_map(heads, rows, columns)))
    _check_no_overlap(figure)
    panels = [axes for axes in figure.axes if axes.get_title().startswith("head") and axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [f"head {n}" for n in range(1, heads + 1)]
    assert figure.get_suptitle().replace("\n", " ") == "Cross-attention, layer 2 (dense)"
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert labels[0] == "␣Wörter0"
    assert len(labels) == rows or (rows > 40 and "is labelled" in panels[0].get_ylabel())
    (bar,) = [axes for axes in figure.axes if axes.get_ylabel() == "attention weight"]
    assert "0.10" in [label.get_text() for label in bar.get_yticklabels()]
    assert bar.get_ylim()[0] == 0
    assert max(figure.get_size_inches()) < 23


def test_what_is_masked_is_not_drawn_as_a_weight() -> None:
    for figure in (draw_layer(_map(1, 4, 4, is_causal=True)), draw_overview([_map(1, 4, 4, is_causal=True)])):
        shown = figure.axes[0].images[0].get_array()
        assert (shown.mask == ~np.tril(np.ones((4, 4), dtype=bool))).all()


@pytest.mark.parametrize(("weight", "top"), [(0.02, 0.1), (0.1, 0.1), (0.2, 0.25), (0.4, 0.5), (0.9, 1.0)])
def test_colours_end_near_the_largest_weights(weight: float, top: float) -> None:
    weights = np.full((2, 40, 40), 1e-3)
    weights[:, :, 7] = weight
    # One in 1,600 may be larger.
    weights[0, 3, 3] = 1.0
    attention = replace(_map(2, 40, 40), weights=weights)
    for figure in (draw_layer(attention), draw_overview([attention])):
        images = [axes.images[0] for axes in figure.axes if axes.get_title()]
        assert {image.get_clim() for image in images} == {(0.0, top)}


def test_a_row_that_sees_one_key_does_not_decide_the_colours() -> None:
    weights = np.full((1, 5, 5), 0.01)
    weights[0, 0, 0] = 1.0
    figure = draw_layer(replace(_map(1, 5, 5, is_causal=True), weights=weights))
    assert figure.axes[0].images[0].get_clim() == (0.0, 0.1)


def test_a_token_is_no_formula() -> None:
    figure = _drawn(draw_layer(_map(1, 2, 2, word="$\\frac{$")))
    assert figure.axes[0].get_xticklabels()[0].get_text() == "$\\frac{$0"


def test_all_layers_at_a_glance() -> None:
    figure = _drawn(draw_overview([_map(3, 5, 9), _map(2, 5, 9)]))
    visible = [axes for axes in figure.axes if axes.images and axes.get_visible()]
    assert len(visible) == 5
    assert figure.get_supxlabel() == "a row: target token; a column: source token"
    _check_no_overlap(figure)


@pytest.mark.parametrize(("layers", "heads", "columns"), [(2, 1, 9), (12, 2, 90)])
def test_layers_with_long_names_at_a_glance(layers: int, heads: int, columns: int) -> None:
    attention = replace(_map(heads, 6, columns), synthesizer="factorized_random+dense+vanilla")
    _check_no_overlap(_drawn(draw_overview([attention] * layers)))


def test_histograms() -> None:
    counts = np.zeros(len(EDGES) - 1)
    counts[[3, 40]] = 1, 3
    layers = [LayerHistogram(n, "random+vanilla", counts) for n in (1, 2)]
    figure = _drawn(draw_histograms({"encoder": layers, "cross": layers[:1]}, "weights"))
    _check_no_overlap(figure)
    first = figure.axes[0]
    assert first.get_title() == "layer 1\nrandom+vanilla"
    assert first.patches[0].get_data().values.sum() == pytest.approx(1.0)
    # Of four weights three are in bin 40, so the median is too.
    assert first.lines[0].get_xdata()[0] == pytest.approx(EDGES[41])
    assert [axes.get_visible() for axes in figure.axes] == [True, True, True, False]


def test_histograms_of_many_layers() -> None:
    counts = np.ones(len(EDGES) - 1)
    layers = [LayerHistogram(n, "factorized_random+factorized_dense+vanilla", counts) for n in range(1, 13)]
    figure = _drawn(draw_histograms({"encoder": layers}, "weights"))
    _check_no_overlap(figure)
    assert figure.axes[0].get_title() == "layer 1\nfactorized_random+\nfactorized_dense+\nvanilla"


def test_histograms_of_the_start() -> None:
    before, after = np.zeros((2, len(EDGES) - 1))
    before[30], after[[30, 31, 32]] = 2, (1, 2, 1)
    drawn = {}
    for name, start in (("known", before), ("unknown", None)):
        drawn[name] = _drawn(draw_histograms({"encoder": [LayerHistogram(1, "dense", after, start)]}, "weights"))
        _check_no_overlap(drawn[name])
    filled, outline = drawn["known"].axes[0].patches
    assert filled.get_data().values.tolist() == (after / 4).tolist()
    assert outline.get_data().values.tolist() == (before / 2).tolist()
    assert len(drawn["unknown"].axes[0].patches) == 1
    labels = {name: [text.get_text() for text in figure.legends[0].get_texts()] for name, figure in drawn.items()}
    assert labels == {"known": ["trained", "before training", "its median"], "unknown": ["trained", "its median"]}
    # 37.5 % is not 38 %.
    shown = [label.get_text() for label in drawn["unknown"].axes[0].get_yticklabels()]
    assert [float(label.rstrip("%")) / 100 for label in shown] == pytest.approx(drawn["unknown"].axes[0].get_yticks())


def test_gates_of_layers_that_mix_different_functions() -> None:
    gates = [
        LayerGates("encoder", 1, ("random", "vanilla"), np.array([[0.25, 0.9], [0.75, 0.1]])),
        LayerGates("encoder", 2, ("dense", "vanilla"), np.array([[0.4], [0.6]])),
        LayerGates("decoder", 1, ("random", "vanilla"), np.array([[0.5], [0.5]])),
    ]
    figure = _drawn(draw_gates(gates))
    panels = {axes.get_title(): [text.get_text() for text in axes.texts] for axes in figure.axes if axes.images}
    assert panels == {
        "encoder: random": ["0.25", "0.90"],
        "encoder: vanilla": ["0.75", "0.10", "0.60", "0.60"],
        "encoder: dense": ["0.40", "0.40"],
        "decoder: random": ["0.50", "0.50"],
        "decoder: vanilla": ["0.50", "0.50"],
    }
    _check_no_overlap(figure)


@pytest.mark.parametrize("heads", [1, 8, 17])
def test_biases_are_lines_over_the_distance(heads: int) -> None:
    two_ways, back = np.arange(-16, 17), np.arange(-128, 1)
    after, other = (np.random.default_rng(0).normal(size=(heads, len(axis))) for axis in (two_ways, back))
    stacks = [StackBiases("encoder", two_ways, after, after / 2), StackBiases("decoder", back, other)]
    figure = _drawn(draw_biases(stacks))
    encoder, decoder = figure.axes
    # The first line is the axis.
    assert [len(axes.lines) for axes in (encoder, decoder)] == [1 + 2 * heads, 1 + heads]
    assert np.array_equal(encoder.lines[1].get_ydata(), after[0] / 2)
    assert np.array_equal(encoder.lines[-1].get_xdata(), two_ways)
    assert np.array_equal(decoder.lines[-1].get_ydata(), other[-1])
    ticks = [label.get_text().replace("−", "-") for label in encoder.get_xticklabels()]
    assert ticks == ["-16", "-8", "-4", "0", "4", "8", "16"]
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert labels == (["all heads before training", *(f"head {i + 1}" for i in range(heads))] if heads < 17 else [])
    _check_no_overlap(figure)


def test_r_before_and_after_have_scales_of_their_own() -> None:
    after = np.random.default_rng(0).normal(size=(5, 9, 9))
    figure = _drawn(draw_table(LayerTable("decoder", 3, "random", after, after / 100, True)))
    images = [axes.images[0] for axes in figure.axes if axes.get_title() and axes.get_visible()]
    assert len(images) == 10
    assert images[0].get_clim()[1] == pytest.approx(images[-1].get_clim()[1] / 100)
    assert images[0].get_array().mask[0, 1]
    _check_no_overlap(figure)
    alone = draw_table(LayerTable("decoder", 3, "random", after, None, True))
    assert "before" not in "".join(axes.get_title() for axes in alone.axes)


@pytest.mark.parametrize(("heads", "size"), [(1, 5), (1, 19), (9, 19)])
def test_positions_are_whole_numbers(heads: int, size: int) -> None:
    after = np.random.default_rng(0).normal(size=(heads, size, size))
    figure = _drawn(draw_table(LayerTable("decoder", 3, "factorized_random", after, after, False)))
    _check_no_overlap(figure)
    for axes in figure.axes[:heads]:
        for ticks in (axes.get_xticks(), axes.get_yticks()):
            assert all(tick == round(tick) for tick in ticks)


def _draw_and_warn(path: Path) -> list[str]:
    with glyphs_reported() as missing:
        # A sign of the private use area: no font has it.
        save(draw_layer(_map(1, 1, 1, word="\ue123")), path)
        warnings.warn("something else", UserWarning, stacklevel=1)
    return missing


def test_signs_without_a_font_are_told_and_other_warnings_pass(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="something else"):
        missing = _draw_and_warn(tmp_path / "map.png")
    assert missing
    assert all(line.startswith("Glyph 57635") for line in missing)
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
