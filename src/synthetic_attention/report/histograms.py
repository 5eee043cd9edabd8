"""Histograms of attention weights per layer, as in the paper's analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .figures import panels
from .statistics import EDGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LayerHistogram", "draw_histograms"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class LayerHistogram:
    """The weights of one layer: counts per bin of `EDGES`, all heads together, and what made the logits."""

    layer: int
    synthesizer: str
    counts: Array


def draw_histograms(rows: Mapping[str, Sequence[LayerHistogram]], title: str) -> Figure:
    """A panel for each layer, a row for each kind of attention, the same axes everywhere.

    Weights are on a logarithmic axis, since small ones are what differs; the dashed line is the median.
    """
    layers = max(len(row) for row in rows.values())
    size = (min(3.0, 20.0 / layers), 1.9)
    figure, axes = panels(len(rows), layers, size, title, sharex=True, sharey=True)
    for colour, (name, row), line in zip(_colours(len(rows)), rows.items(), axes, strict=True):
        for axis in line[len(row) :]:
            axis.set_visible(False)
        for axis, histogram in zip(line, row, strict=False):
            _draw(axis, histogram, colour)
        line[0].set_ylabel(f"{name}\nshare of weights", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("attention weight", fontsize=9)
    for line in axes:
        for axis in line:
            axis.tick_params(labelsize=8)
    return figure


def _draw(axis: Axes, histogram: LayerHistogram, colour: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    shares = histogram.counts / max(1, histogram.counts.sum())
    axis.stairs(shares, EDGES, fill=True, color=colour, alpha=0.8)
    axis.set_xscale("log")
    axis.set_xlim(EDGES[0], EDGES[-1])
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    median = EDGES[1:][np.searchsorted(np.cumsum(shares), 0.5).clip(max=len(shares) - 1)]
    axis.axvline(median, color="black", linewidth=0.8, linestyle="--")
    axis.set_title(f"layer {histogram.layer}\n{histogram.synthesizer}", fontsize=9)


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["tab10"](index) for index in range(count)]
