"""The learned weights α of mixtures, per layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .figures import colour_bar, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LayerGates", "draw_gates"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class LayerGates:
    """The gates of one layer.

    Attributes:
        stack: "encoder" or "decoder".
        layer: counted from 1.
        components: the functions that are mixed.
        alpha: (components, H), or (components, 1) where all heads share them.
    """

    stack: str
    layer: int
    components: tuple[str, ...]
    alpha: Array


def draw_gates(gates: Sequence[LayerGates]) -> Figure:
    """A panel for each function (down) and stack (across): layers and heads, α as a number and a colour."""
    stacks = list(dict.fromkeys(gate.stack for gate in gates))
    functions = list(dict.fromkeys(name for gate in gates for name in gate.components))
    heads = max(gate.alpha.shape[1] for gate in gates)
    deepest = max(sum(gate.stack == stack for gate in gates) for stack in stacks)
    size = (max(2.8, 0.45 * heads), max(1.0, 0.32 * deepest))
    figure, axes = panels(len(functions), len(stacks), size, "Weight α of each function in the mixtures")
    image = None
    for function, line in zip(functions, axes, strict=True):
        for stack, axis in zip(stacks, line, strict=True):
            chosen = [gate for gate in gates if gate.stack == stack]
            if not any(function in gate.components for gate in chosen):
                axis.set_visible(False)
                continue
            image = _draw(axis, chosen, function, heads)
            axis.set_title(f"{stack}: {function}", fontsize=9)
            axis.set_ylabel("layer", fontsize=9)
    colour_bar(figure, image, [axis for line in axes for axis in line], "α")
    return figure


def _draw(axis: Axes, gates: Sequence[LayerGates], function: str, heads: int) -> Any:
    table = np.full((len(gates), heads), np.nan)
    for row, gate in enumerate(gates):
        if function in gate.components:
            # A function that a mixture names twice has the sum of its weights.
            chosen = [i for i, name in enumerate(gate.components) if name == function]
            table[row] = gate.alpha[chosen].sum(axis=0)
    image = axis.imshow(np.ma.masked_invalid(table), cmap="RdBu_r", vmin=0.0, vmax=1.0, aspect="auto")
    for row, column in zip(*np.nonzero(np.isfinite(table)), strict=True):
        value = table[row, column]
        dark = abs(value - 0.5) > 0.27
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axis.set_xticks(range(heads), [str(head + 1) for head in range(heads)], fontsize=8)
    axis.set_yticks(range(len(gates)), [str(gate.layer) for gate in gates], fontsize=8)
    axis.tick_params(length=0)
    axis.set_xlabel("head", fontsize=9)
    return image
