"""Histograms of attention weights per layer, as in the paper's analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compare.statistics import EDGES
from .figures import broken, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LayerHistogram", "draw_histograms"]

Array = np.ndarray[Any, np.dtype[Any]]
_MEDIAN: dict[str, Any] = {"color": "black", "linewidth": 0.8, "linestyle": "--"}
_BEFORE: dict[str, Any] = {"color": "black", "linewidth": 0.8}


@dataclass(frozen=True, eq=False)
class LayerHistogram:
    """The weights of one layer, all heads together.

    Attributes:
        layer: counted from 1.
        synthesizer: what made the logits.
        counts: per bin of `EDGES`.
        before: likewise before training; None where it is not known.
    """

    layer: int
    synthesizer: str
    counts: Array
    before: Array | None = None


def draw_histograms(rows: Mapping[str, Sequence[LayerHistogram]], title: str) -> Figure:
    """A panel for each layer, a row for each kind of attention, the same axes everywhere.

    Weights are on a logarithmic axis, since small ones are what differs.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    layers = max(len(row) for row in rows.values())
    size = (min(3.0, 20.0 / layers), 1.9)
    figure, axes = panels(len(rows), layers, size, title, sharex=True, sharey=True)
    for colour, (name, row), line in zip(_colours(len(rows)), rows.items(), axes, strict=True):
        for axis in line[len(row) :]:
            axis.set_visible(False)
        for axis, histogram in zip(line, row, strict=False):
            _draw(axis, histogram, colour, size[0])
        line[0].set_ylabel(f"{name}\nshare of weights", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("attention weight", fontsize=9)
    for line in axes:
        for axis in line:
            axis.tick_params(labelsize=8)
    # One legend for all. Each row of panels has a colour of its own, so the trained one is shown in grey.
    first = next(iter(rows.values()))[0]
    handles = [Patch(color="0.6", label="trained"), Line2D([], [], label="its median", **_MEDIAN)]
    if first.before is not None:
        handles.insert(1, Line2D([], [], label="before training", **_BEFORE))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    return figure


def _draw(axis: Axes, histogram: LayerHistogram, colour: Any, inches: float) -> None:
    from matplotlib.ticker import PercentFormatter

    shares = _shares(histogram.counts)
    axis.stairs(shares, EDGES, fill=True, color=colour, alpha=0.8)
    if histogram.before is not None:
        axis.stairs(_shares(histogram.before), EDGES, **_BEFORE)
    axis.set_xscale("log")
    axis.set_xlim(EDGES[0], EDGES[-1])
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    median = EDGES[1:][np.searchsorted(np.cumsum(shares), 0.5).clip(max=len(shares) - 1)]
    axis.axvline(median, **_MEDIAN)
    axis.set_title(f"layer {histogram.layer}\n{broken(histogram.synthesizer, inches, 9)}", fontsize=9)


def _shares(counts: Array) -> Array:
    return counts / max(1, counts.sum())


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["tab10"](index) for index in range(count)]
