"""Heat maps of attention weights: the heads of a layer with tokens on the axes, and all layers at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compare.statistics import visible_keys
from .figures import broken, colour_bar, families, grid_shape, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["AttentionMap", "draw_layer", "draw_overview"]

Array = np.ndarray[Any, np.dtype[Any]]
# Inches for one token's label, and for a panel.
_LABEL = 0.16
_SMALLEST, _WIDEST = 2.0, 6.4
_WIDEST_FIGURE = 20.0
# For the name of a layer's synthesizer beside it.
_LOWEST_OVERVIEW = 1.4
_COLOURS = "magma_r"
_TICKS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
# Few, so that pictures have the same colours where they can.
_TOPS = (0.1, 0.25, 0.5, 1.0)
_QUANTILE = 0.98
_HIDDEN = "#e8e8e8"


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The attention weights of one layer for one text.

    Attributes:
        title: what attends, "encoder self-attention".
        layer: counted from 1.
        synthesizer: what made the logits, "random+vanilla".
        weights: (H, T, S).
        rows, columns: labels of the T queries and S keys.
        row_name, column_name: what the labels are, "target token".
        is_causal: a row sees itself and what is before it.
    """

    title: str
    layer: int
    synthesizer: str
    weights: Array
    rows: Sequence[str]
    columns: Sequence[str]
    row_name: str
    column_name: str
    is_causal: bool = False


def draw_layer(attention: AttentionMap) -> Figure:
    """A panel for each head, tokens on the axes. Where there are too many tokens, every n-th has its label."""
    heads, rows, columns = attention.weights.shape
    grid = grid_shape(heads)
    width = _panel(columns, _WIDEST_FIGURE / grid[1])
    height = _panel(rows, _WIDEST_FIGURE / grid[0])
    title = f"{attention.title}, layer {attention.layer} ({attention.synthesizer})"
    figure, axes = panels(*grid, (width, height), title)
    flat = [axis for line in axes for axis in line]
    top = _top([attention])
    image = None
    for head, axis in enumerate(flat[:heads]):
        image = _show(axis, attention.weights[head], attention.is_causal, top)
        axis.set_title(f"head {head + 1}", fontsize=9)
        # Labels at the left of a row of panels, and where no panel is below.
        axis.set(xticks=[], yticks=[])
        if head % grid[1] == 0:
            _label(axis.yaxis, attention.rows, height, attention.row_name)
        if head + grid[1] >= heads:
            _label(axis.xaxis, attention.columns, width, attention.column_name, rotation=90)
    for axis in flat[heads:]:
        axis.set_visible(False)
    _weight_bar(figure, image, flat[:heads], top)
    return figure


def draw_overview(maps: Sequence[AttentionMap]) -> Figure:
    """All layers (rows) and heads (columns) of one kind of attention, small and without tokens."""
    heads = max(attention.weights.shape[0] for attention in maps)
    _, rows, columns = maps[0].weights.shape
    size = min(1.5, _WIDEST_FIGURE / heads)
    height = min(max(size * rows / columns, _LOWEST_OVERVIEW), max(2 * size, _LOWEST_OVERVIEW))
    figure, axes = panels(len(maps), heads, (size, height), f"{maps[0].title}, all layers and heads")
    figure.supxlabel(f"a row: {maps[0].row_name}; a column: {maps[0].column_name}", fontsize=9)
    top = _top(maps)
    image = None
    for line, attention in zip(axes, maps, strict=True):
        for head, axis in enumerate(line):
            axis.set(xticks=[], yticks=[])
            if head >= attention.weights.shape[0]:
                axis.set_visible(False)
                continue
            image = _show(axis, attention.weights[head], attention.is_causal, top)
            if attention is maps[0]:
                axis.set_title(f"head {head + 1}", fontsize=9)
        line[0].set_ylabel(f"layer {attention.layer}\n{broken(attention.synthesizer, height, 8)}", fontsize=8)
    _weight_bar(figure, image, [axis for line in axes for axis in line], top)
    return figure


def _top(maps: Sequence[AttentionMap]) -> float:
    """The weight that has the darkest colour: near the largest, but a few large ones must not make all others pale."""
    found = []
    for attention in maps:
        _, rows, columns = attention.weights.shape
        visible = visible_keys(rows, columns, attention.is_causal)
        # A row that sees one key only has a weight of 1 whatever the model.
        visible &= visible.sum(axis=1, keepdims=True) > 1
        found.append(attention.weights[:, visible].ravel())
    weights = np.concatenate(found)
    high = float(np.quantile(weights, _QUANTILE)) if len(weights) else 1.0
    return next((top for top in _TOPS if top >= high), 1.0)


def _weight_bar(figure: Figure, image: Any, axes: Sequence[Axes], top: float) -> None:
    ticks = [tick for tick in _TICKS if tick <= top]
    colour_bar(figure, image, axes, "attention weight", ticks=ticks, extend="neither" if top == 1.0 else "max")


def _show(axis: Axes, weights: Array, is_causal: bool, top: float) -> Any:
    """The weights as colours up to `top`; what is masked is grey."""
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm

    # The square root shows the small weights too.
    norm = PowerNorm(0.5, vmin=0.0, vmax=top)
    rows, columns = weights.shape
    shown = np.ma.masked_array(weights, ~visible_keys(rows, columns, is_causal))
    colours = colormaps[_COLOURS].with_extremes(bad=_HIDDEN)
    return axis.imshow(shown, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")


def _panel(tokens: int, widest: float) -> float:
    return min(max(_SMALLEST, _LABEL * tokens), _WIDEST, widest)


def _label(axis: Any, labels: Sequence[str], inches: float, name: str, **options: Any) -> None:
    step = -(-len(labels) // max(1, int(inches / _LABEL)))
    places = range(0, len(labels), step)
    shown = [labels[place] for place in places]
    # A $ is a token here, no formula.
    axis.set_ticks(places, shown, fontsize=8, fontfamily=families(), parse_math=False, **options)
    axis.set_tick_params(length=0)
    axis.set_label_text(name if step == 1 else f"{name} (1 in {step} is labelled)", fontsize=9)
