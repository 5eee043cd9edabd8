"""The figures of an inspection, on matplotlib without its global state. Entries of inspect.json come as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps, font_manager
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .statistics import EDGES, Array, visible_keys

if TYPE_CHECKING:
    from .collect import AttentionMaps

# Inches: the panels of a figure side by side, and one token's label.
_WIDEST = 20.0
_LABEL = 0.15
_HIDDEN = "#e8e8e8"


def draw_attention(maps: AttentionMaps) -> Figure:
    """Heat maps of all layers (rows) and heads (columns) of one kind of attention, with tokens on the axes."""
    (row_name, rows), (column_name, columns) = maps.rows, maps.columns
    depth, heads = len(maps.weights), len(maps.weights[0])
    width = float(np.clip(_LABEL * len(columns), 1.5, _WIDEST / heads))
    height = float(np.clip(_LABEL * len(rows), 1.5, _WIDEST / depth))
    names, title = (f"{column_name} (key)", f"{row_name} (query)"), f"{maps.title}, all layers and heads"
    figure, axes = _make_panels(depth, heads, (width, height), title, names)
    visible = visible_keys(len(rows), len(columns), maps.is_causal)
    # The square root shows small weights too. A row with one visible key has a weight of 1 in any model.
    several = visible & (visible.sum(axis=1, keepdims=True) > 1)
    top = max((float(weights[:, several].max()) for weights in maps.weights if several.any()), default=0.0) or 1.0
    norm, colors = PowerNorm(0.5, vmin=0.0, vmax=top), colormaps["magma_r"].with_extremes(bad=_HIDDEN)
    image = None
    for (layer, head), axis in np.ndenumerate(axes):
        shown = np.ma.masked_array(maps.weights[layer][head], ~visible)
        image = axis.imshow(shown, cmap=colors, norm=norm, aspect="auto", interpolation="nearest")
        axis.set(xticks=[], yticks=[])
    for head, (first, last) in enumerate(zip(axes[0], axes[-1], strict=True), start=1):
        first.set_title(f"head {head}", fontsize=9)
        _label(last.xaxis, columns, width, rotation=90)
    for layer, axis in enumerate(axes[:, 0]):
        axis.set_ylabel(f"layer {layer + 1}\n{_in_lines(maps.synthesizers[layer])}", fontsize=9)
        _label(axis.yaxis, rows, height)
    _add_color_bar(figure, image, axes, "attention weight")
    return figure


def _in_lines(synthesizer: str) -> str:
    """A function of a mixture or group per line."""
    return re.sub(r"([+/])", r"\1\n", synthesizer)


def _label(axis: Any, labels: Sequence[str], size: float, **options: Any) -> None:
    """Tokens as tick labels: all, or every n-th where there is no room."""
    step = -(-len(labels) // round(size / _LABEL))
    # Matplotlib's own font has no Chinese, Japanese and Korean, Noto has. A $ is a token here, not a formula.
    fonts = ["DejaVu Sans", *sorted(name for name in font_manager.get_font_names() if name.startswith("Noto Sans"))]
    axis.set_ticks(
        range(0, len(labels), step), labels[::step], fontfamily=fonts, fontsize=8, parse_math=False, **options
    )
    axis.set_tick_params(length=0, pad=2)


def draw_histograms(layers: Sequence[Mapping[str, Any]]) -> Figure:
    """The attention weights of each layer ("attention" in inspect.json), as in the paper's analysis."""
    figure, panels = _make_layer_panels(layers, "Attention weights", ("attention weight", "share of weights"))
    for (row, axis), layer in zip(panels, layers, strict=True):
        shares = np.array(layer["histogram"]) / max(1, sum(layer["histogram"]))
        axis.stairs(shares, EDGES, fill=True, color=colormaps["tab10"](row), alpha=0.8, label="trained")
        if before := layer.get("histogram_before"):
            shares_before = np.array(before) / max(1, sum(before))
            axis.stairs(shares_before, EDGES, color="black", linewidth=0.8, label="before training")
        median = EDGES[1:][np.searchsorted(shares.cumsum(), 0.5).clip(max=len(shares) - 1)]
        axis.axvline(median, color="black", linewidth=0.8, linestyle="--", label="median")
        name = _in_lines(layer["synthesizer"])
        axis.set_title(f"{layer['stack']}, layer {layer['layer']}\n{name}", fontsize=9)
        axis.set(xscale="log", xlim=(EDGES[0], 1.0))
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    panels[0][1].legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def draw_gates(layers: Sequence[Mapping[str, Any]]) -> Figure:
    """α at each validation ("gates" in inspect.json): a panel per layer, a color per function, a line per head."""
    figure, panels = _make_layer_panels(layers, "Mixture weights", ("step", "α"))
    functions = list(dict.fromkeys(name for layer in layers for name in layer["alpha"]))
    for (_, axis), layer in zip(panels, layers, strict=True):
        steps = [entry["step"] for entry in layer["history"]]
        for name in layer["alpha"]:
            color = colormaps["tab10"](functions.index(name) % 10)
            lines = axis.plot(steps, [entry["alpha"][name] for entry in layer["history"]], color=color, linewidth=0.9)
            lines[0].set_label(name)
        axis.set_title(f"{layer['stack']}, layer {layer['layer']}", fontsize=9)
        axis.legend(fontsize=8, frameon=False)
    return figure


def _make_layer_panels(
    layers: Sequence[Mapping[str, Any]], title: str, names: Sequence[str]
) -> tuple[Figure, list[tuple[int, Any]]]:
    """A figure with a panel per layer, a row per stack: the row and the axes of each layer; `names` of x and y."""
    stacks = list(dict.fromkeys(layer["stack"] for layer in layers))
    rows = [[layer["layer"] for layer in layers if layer["stack"] == stack] for stack in stacks]
    columns = max(len(row) for row in rows)
    size = (min(3.0, _WIDEST / columns), 1.9)
    figure, axes = _make_panels(len(stacks), columns, size, title, names, sharex=True, sharey=True)
    places = [(row := stacks.index(layer["stack"]), rows[row].index(layer["layer"])) for layer in layers]
    for place, axis in np.ndenumerate(axes):
        axis.set_visible(place in places)
        # Of a shorter row the panels below are hidden.
        axis.tick_params(labelbottom=(place[0] + 1, place[1]) not in places)
    return figure, [(place[0], axes[place]) for place in places]


def draw_scores(title: str, states: Mapping[str, Array], is_causal: bool, first_head: int = 0) -> Figure:
    """R (H, N, N) of each head, a row of panels per state. Each state has its own color scale, since R grows."""
    heads, size, _ = next(iter(states.values())).shape
    inches, names = min(2.6, _WIDEST / heads), ("key position", "query position")
    figure, axes = _make_panels(len(states), heads, (inches, inches), title, names, sharex=True, sharey=True)
    visible = visible_keys(size, size, is_causal)
    colors = colormaps["RdBu_r"].with_extremes(bad=_HIDDEN)
    for line, (state, scores) in zip(axes, states.items(), strict=True):
        # A few large entries must not make all others pale.
        limit = float(np.quantile(np.abs(scores[:, visible]), 0.995)) or 1.0
        image = None
        for head, axis in enumerate(line):
            masked = np.ma.masked_array(scores[head], ~visible)
            image = axis.imshow(masked, cmap=colors, vmin=-limit, vmax=limit, interpolation="nearest")
            axis.set_title(f"head {first_head + head + 1} {state}\nstandard deviation {masked.std():.2g}", fontsize=9)
        _add_color_bar(figure, image, line, f"R {state} training")
    for axis in (axes[0][0].xaxis, axes[0][0].yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))
    return figure


def _make_panels(
    rows: int, columns: int, size: Sequence[float], title: str, names: Sequence[str], **options: Any
) -> tuple[Figure, Array]:
    """A figure with rows × columns axes of `size` inches (width, height) each, labels not counted; `names` of x, y."""
    figure = Figure(figsize=(columns * size[0] + 2.0, rows * size[1] + 1.6), dpi=150, layout="constrained")
    figure.suptitle(title, fontsize=12, wrap=True, parse_math=False)
    figure.supxlabel(names[0], fontsize=9)
    figure.supylabel(names[1], fontsize=9)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.tick_params(labelsize=8, length=2)
    return figure, axes


def _add_color_bar(figure: Figure, image: Any, axes: Any, label: str) -> None:
    bar = figure.colorbar(image, ax=axes, aspect=max(20.0, figure.get_figheight() / 0.2), pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
