"""R, the logits that do not depend on the input, before and after training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .compare.statistics import visible_keys
from .inspect.figures import colour_bar, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LayerTable", "draw_table"]

Array = np.ndarray[Any, np.dtype[Any]]
_PER_ROW = 8
_HIDDEN = "#e8e8e8"


@dataclass(frozen=True, eq=False)
class LayerTable:
    """R of one layer.

    Attributes:
        stack: "encoder" or "decoder".
        layer: counted from 1.
        function: what it is the R of, "factorized_random".
        after: (H, N, N), as trained.
        before: likewise at the start; None where it is not known.
        is_causal: only the lower triangle is ever read.
    """

    stack: str
    layer: int
    function: str
    after: Array
    before: Array | None
    is_causal: bool


def draw_table(table: LayerTable) -> Figure:
    """R of each head before training above R after training, each with its own scale of colours, since R grows."""
    from matplotlib.ticker import MaxNLocator

    heads, size, _ = table.after.shape
    columns = min(heads, _PER_ROW)
    lines = -(-heads // columns)
    states = [("before training", table.before), ("after training", table.after)]
    shown = [(name, scores) for name, scores in states if scores is not None]
    inches = min(2.6, 20.0 / columns)
    name = f"R of {table.function}, {table.stack}, layer {table.layer}: the first {size} positions"
    figure, axes = panels(lines * len(shown), columns, (inches, inches), name, sharex=True, sharey=True)
    for index, (state, scores) in enumerate(shown):
        rows = axes[index * lines : (index + 1) * lines]
        flat = [axis for row in rows for axis in row]
        image = _draw(flat, scores, table.is_causal, state)
        for row in rows:
            row[0].set_ylabel("query position", fontsize=9)
        colour_bar(figure, image, flat, f"R, {state}")
    for axis in axes[-1]:
        axis.set_xlabel("key position", fontsize=9)
        for side in (axis.xaxis, axis.yaxis):
            # Shared by all panels. Positions are whole numbers.
            side.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))
    return figure


def _draw(axes: list[Axes], scores: Array, is_causal: bool, state: str) -> Any:
    from matplotlib import colormaps

    _, rows, columns = scores.shape
    visible = visible_keys(rows, columns, is_causal)
    # A few large entries must not make all others pale.
    limit = float(np.quantile(np.abs(scores[:, visible]), 0.995)) or 1.0
    colours = colormaps["RdBu_r"].with_extremes(bad=_HIDDEN)
    image = None
    for axis in axes[len(scores) :]:
        axis.set_visible(False)
    for head, (axis, values) in enumerate(zip(axes, scores, strict=False)):
        masked = np.ma.masked_array(values, ~visible)
        image = axis.imshow(masked, cmap=colours, vmin=-limit, vmax=limit, interpolation="nearest")
        deviation = values[visible].std()
        axis.set_title(f"head {head + 1}, {state}\nstandard deviation {deviation:.2g}", fontsize=9)
        axis.tick_params(labelsize=8, length=2)
    return image
