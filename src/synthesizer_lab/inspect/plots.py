"""The figures of an inspection, on matplotlib without its global state. Entries of inspect.json come as they are."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib import colormaps, font_manager
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .collect import EDGES, Array, AttentionMaps, visible_keys

# Inches: the panels of a figure side by side, and one token's label.
_WIDEST = 20.0
_LABEL = 0.15
_HIDDEN = "#e8e8e8"


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    with warnings.catch_warnings():
        # A character that no font has is drawn as an empty box.
        warnings.filterwarnings("ignore", r"Glyph \d+")
        figure.savefig(path)


def draw_attention(maps: AttentionMaps) -> Figure:
    """Heat maps of all layers (rows) and heads (columns) of one kind of attention, with tokens on the axes."""
    (row_name, rows), (column_name, columns) = maps.rows, maps.columns
    depth, heads = len(maps.weights), len(maps.weights[0])
    width = float(np.clip(_LABEL * len(columns), 1.5, _WIDEST / heads))
    height = float(np.clip(_LABEL * len(rows), 1.5, _WIDEST / depth))
    names, title = (f"{column_name} (key)", f"{row_name} (query)"), f"{maps.title}, all layers and heads"
    figure = _make_figure((heads * width, depth * height), title, names)
    axes = figure.subplots(depth, heads, squeeze=False)
    visible = visible_keys(len(rows), len(columns), maps.is_causal)
    # The square root shows small weights too. A row with one visible key has a weight of 1 in any model.
    several = visible & (visible.sum(axis=1, keepdims=True) > 1)
    top = max((float(weights[:, several].max()) for weights in maps.weights if several.any()), default=0.0) or 1.0
    norm, colors = PowerNorm(0.5, vmin=0.0, vmax=top), colormaps["magma_r"].with_extremes(bad=_HIDDEN)
    image: Any = None
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
    figure.colorbar(image, ax=axes, label="attention weight", aspect=40, pad=0.02)
    return figure


def _in_lines(synthesizer: str) -> str:
    """A function of a mixture or group per line."""
    return synthesizer.replace("+", "+\n").replace("/", "/\n")


def _label(axis: Any, labels: Sequence[str], size: float, **options: Any) -> None:
    """Tokens as tick labels: all, or every n-th where there is no room."""
    step = -(-len(labels) // round(size / _LABEL))
    # Matplotlib's own font has no Chinese, Japanese and Korean, Noto has. A $ is a token here, not a formula.
    fonts = ["DejaVu Sans", *sorted(name for name in font_manager.get_font_names() if name.startswith("Noto Sans"))]
    options |= {"fontfamily": fonts, "fontsize": 8, "parse_math": False}
    axis.set_ticks(range(0, len(labels), step), labels[::step], **options)


def draw_histograms(layers: Sequence[Mapping[str, Any]]) -> Figure:
    """The attention weights of each layer ("attention" in inspect.json), as in the paper's analysis."""
    figure, panels = _make_layer_panels(layers, "Attention weights", ("attention weight", "share of weights"))
    for axis, layer in zip(panels, layers, strict=True):
        shares = np.array(layer["histogram"]) / max(1, sum(layer["histogram"]))
        axis.stairs(shares, EDGES, fill=True, alpha=0.8)
        median = EDGES[1:][np.searchsorted(shares.cumsum(), 0.5).clip(max=len(shares) - 1)]
        axis.axvline(median, color="black", linewidth=0.8, linestyle="--", label="median")
        name = _in_lines(layer["synthesizer"])
        axis.set_title(f"{layer['stack']}, layer {layer['layer']}\n{name}", fontsize=9)
        axis.set(xscale="log", xlim=(EDGES[0], 1.0))
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    panels[0].legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def draw_gates(layers: Sequence[Mapping[str, Any]]) -> Figure:
    """α at each validation ("gates" in inspect.json): a panel per layer, a color per function, a line per head."""
    figure, panels = _make_layer_panels(layers, "Mixture weights", ("step", "α"))
    functions = list(dict.fromkeys(name for layer in layers for name in layer["alpha"]))
    for axis, layer in zip(panels, layers, strict=True):
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
) -> tuple[Figure, list[Any]]:
    """A figure with a row of panels per stack, and the axes of each layer; `names` of x and y."""
    places = [f"{layer['stack']} {layer['layer']}" for layer in layers]
    stacks = dict.fromkeys(place.split()[0] for place in places)
    rows = [[place for place in places if place.split()[0] == stack] for stack in stacks]
    columns = max(map(len, rows))
    figure = _make_figure((columns * min(3.0, _WIDEST / columns), len(rows) * 1.9), title, names)
    mosaic: Any = [[*row, *["."] * (columns - len(row))] for row in rows]
    axes = figure.subplot_mosaic(mosaic, sharex=True, sharey=True)
    return figure, [axes[place] for place in places]


def draw_scores(title: str, scores: Array, is_causal: bool, first_head: int = 0) -> Figure:
    """R (H, N, N) of each head."""
    heads, size, _ = scores.shape
    inches = min(2.6, _WIDEST / heads)
    figure = _make_figure((heads * inches, inches), title, ("key position", "query position"))
    axes = figure.subplots(1, heads, squeeze=False, sharex=True, sharey=True)[0]
    visible = visible_keys(size, size, is_causal)
    colors, image = colormaps["RdBu_r"].with_extremes(bad=_HIDDEN), cast(Any, None)
    # A few large entries must not make all others pale.
    limit = float(np.quantile(np.abs(scores[:, visible]), 0.995)) or 1.0
    for head, axis in enumerate(axes):
        masked = np.ma.masked_array(scores[head], ~visible)
        image = axis.imshow(masked, cmap=colors, vmin=-limit, vmax=limit, interpolation="nearest")
        axis.set_title(f"head {first_head + head + 1}\nstandard deviation {masked.std():.2g}", fontsize=9)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    figure.colorbar(image, ax=axes, pad=0.02)
    return figure


def _make_figure(size: Sequence[float], title: str, names: Sequence[str]) -> Figure:
    """A figure for panels of `size` inches (width, height), labels not counted; `names` of x and y."""
    figure = Figure(figsize=(size[0] + 2.0, size[1] + 1.6), dpi=150, layout="constrained")
    figure.suptitle(title, fontsize=12, wrap=True, parse_math=False)
    figure.supxlabel(names[0], fontsize=9)
    figure.supylabel(names[1], fontsize=9)
    return figure
