"""Relative position biases: a learned number per head and distance, added to the logits of all layers of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .figures import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["StackBiases", "draw_biases"]

Array = np.ndarray[Any, np.dtype[Any]]
# Distances up to here are as far apart on the axis as they are; from here on by their logarithm, like T5's buckets.
_LINEAR = 8
# More heads than this would need a legend larger than the picture.
_NAMED_HEADS = 16


@dataclass(frozen=True, eq=False)
class StackBiases:
    """The biases of one stack, which its layers share.

    Attributes:
        stack: "encoder" or "decoder".
        distances: (D,), key minus query, ascending.
        after: (H, D).
        before: likewise before training; None where it is not known.
    """

    stack: str
    distances: Array
    after: Array
    before: Array | None = None


def draw_biases(stacks: Sequence[StackBiases]) -> Figure:
    """A panel for each stack, a line for each head; before training all heads in grey."""
    figure, axes = panels(1, len(stacks), (5.0, 3.0), "Relative position biases", sharey=True)
    for stack, axis in zip(stacks, axes[0], strict=True):
        _draw(axis, stack)
    axes[0][0].set_ylabel("bias on the logits", fontsize=9)
    heads = max(len(stack.after) for stack in stacks)
    if heads <= _NAMED_HEADS:
        handles, labels = max((axis.get_legend_handles_labels() for axis in axes[0]), key=lambda found: len(found[0]))
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(len(handles), 6), fontsize=8, frameon=False
        )
    return figure


def _draw(axis: Axes, stack: StackBiases) -> None:
    from matplotlib import colormaps
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    axis.axhline(0.0, color="black", linewidth=0.5)
    for head, line in enumerate([] if stack.before is None else stack.before):
        axis.step(
            stack.distances,
            line,
            where="mid",
            color="0.75",
            linewidth=0.8,
            label="all heads before training" if head == 0 else None,
        )
    colours = colormaps["viridis"](np.linspace(0.0, 0.9, len(stack.after)))
    for head, (line, colour) in enumerate(zip(stack.after, colours, strict=True), start=1):
        axis.step(stack.distances, line, where="mid", color=colour, linewidth=1.2, label=f"head {head}")
    axis.set_xscale("symlog", linthresh=_LINEAR, base=2)
    first, last = int(stack.distances[0]), int(stack.distances[-1])
    axis.set_xlim(first, last if last > 0 else 1)
    powers = [2**power for power in range(2, 20) if 2**power <= -first]
    ticks = [*(-power for power in reversed(powers)), 0, *(power for power in powers if power <= last)]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.tick_params(labelsize=8)
    axis.set_xlabel("distance of the key from the query, in tokens (negative: before it)", fontsize=9)
    axis.set_title(stack.stack, fontsize=9)
