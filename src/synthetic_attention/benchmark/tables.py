"""Benchmarks of layers as tables, JSON and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from .attention import FLOOR, Share, Timing
from .encoder import ENCODER_BASELINE, Cost
from .layers import BASELINE, Case
from .memory import Memory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_sweep", "encoder_table", "memory_table", "profile_table", "records", "timing_table"]

_MB = 1e6
# The peers are grey; ours have a colour a family, and a line each.
_STYLES = {
    BASELINE: ("black", "-"),
    "sdpa": ("0.45", "-"),
    "t5": ("0.45", ":"),
    "random": ("tab:blue", "-"),
    "fixed_random": ("tab:blue", "--"),
    "factorized_random": ("tab:blue", ":"),
    "dense": ("tab:orange", "-"),
    "factorized_dense": ("tab:orange", ":"),
    "vanilla": ("tab:green", "-"),
    "random+vanilla": ("tab:red", "-"),
    "dense+vanilla": ("tab:red", "--"),
    FLOOR: ("0.7", "--"),
}


def _by_shape(
    results: Sequence[Timing] | Sequence[Memory],
) -> tuple[list[Case], list[str], dict[tuple[str, Case], Any]]:
    cases = list(dict.fromkeys(result.case for result in results))
    names = list(dict.fromkeys(result.name for result in results))
    return cases, names, {(result.name, result.case): result for result in results}


def _columns(table: Table, cases: Sequence[Case]) -> None:
    table.add_column("layer", no_wrap=True)
    for case in cases:
        table.add_column(f"{case.batch}×{case.length}", justify="right", no_wrap=True)


def _passes(training: bool) -> str:
    return "forward + backward" if training else "forward, inference"


def timing_table(results: Sequence[Timing]) -> Table:
    """A row per layer, a column per shape: how many times as fast as the baseline; all of one kind of mask."""
    cases, names, found = _by_shape(results)
    first = results[0]
    spread = max((r.ratio[2] - r.ratio[0]) / r.ratio[1] for r in results)
    table = Table(
        title=f"speed, {first.case.mask}, {_passes(first.training)} (nn.MultiheadAttention = 1)",
        caption=f"medians of turns; the quartiles of a figure are at most {100 * spread:.0f} % apart",
    )
    _columns(table, cases)
    for name in names:
        cells = [found.get((name, case)) for case in cases]
        table.add_row(name, *("" if cell is None else f"{cell.ratio[1]:.2f}" for cell in cells))
    return table


def memory_table(results: Sequence[Memory]) -> Table:
    """A row per layer, a column per shape: peak megabytes, and what the forward leaves for the backward."""
    cases, names, found = _by_shape(results)
    first = results[0]
    caption = "beyond parameters and their gradients"
    table = Table(
        title=f"peak MB, {first.case.mask}, {_passes(first.training)}",
        caption=f"{caption}; in brackets, what the forward keeps for the backward" if first.training else caption,
    )
    _columns(table, cases)
    for name in names:
        cells = []
        for case in cases:
            memory = found[name, case]
            kept = f" ({memory.kept / _MB:,.0f})" if memory.training else ""
            cells.append(f"{memory.peak / _MB:,.0f}{kept}")
        table.add_row(name, *cells)
    return table


def encoder_table(costs: Sequence[Cost]) -> Table:
    """A row per encoder, of one case: parameters, milliseconds, speed beside the vanilla encoder, megabytes."""
    first = costs[0]
    spread = max((cost.ratio[2] - cost.ratio[0]) / cost.ratio[1] for cost in costs)
    caption = f"medians of turns; the quartiles of a speed are at most {100 * spread:.0f} % apart. Memory is beyond "
    caption += "parameters and gradients"
    table = Table(
        title=f"encoder of {first.layers} layers, {first.case.batch}×{first.case.length}, {first.case.mask}, "
        f"{_passes(first.training)}",
        caption=caption + (", in brackets what the forward keeps for the backward" if first.training else ""),
    )
    table.add_column("encoder", no_wrap=True)
    for name in ("parameters", "ms", f"speed ({ENCODER_BASELINE} = 1)", "peak MB"):
        table.add_column(name, justify="right", no_wrap=True)
    for cost in costs:
        kept = f" ({cost.kept / _MB:,.0f})" if cost.training else ""
        milliseconds, speed, peak = f"{cost.milliseconds[1]:,.1f}", f"{cost.ratio[1]:.2f}", f"{cost.peak / _MB:,.0f}"
        table.add_row(cost.name, f"{cost.parameters:,}", milliseconds, speed, peak + kept)
    return table


def profile_table(shares: Sequence[Share], name: str, operations: int = 8) -> Table:
    """The dearest operations of a layer's step, of all shapes side by side."""
    mine = [share for share in shares if share.name == name]
    cases = list(dict.fromkeys(share.case for share in mine))
    totals = {
        operation: sum(share.milliseconds for share in mine if share.operation == operation)
        for operation in dict.fromkeys(share.operation for share in mine)
    }
    table = Table(title=f"{name}, {cases[0].mask}: percent of a step (calls)")
    table.add_column("operation", no_wrap=True)
    for case in cases:
        table.add_column(f"{case.batch}×{case.length}", justify="right", no_wrap=True)
    for operation in sorted(totals, key=lambda each: -totals[each])[:operations]:
        found = {share.case: share for share in mine if share.operation == operation}
        cells = [found.get(case) for case in cases]
        row = ["" if cell is None else f"{100 * cell.share:.0f} ({cell.calls})" for cell in cells]
        table.add_row(operation, *row)
    return table


def records(results: Sequence[Timing] | Sequence[Memory] | Sequence[Cost]) -> list[dict[str, Any]]:
    """Plain values, as JSON keeps them."""
    found = []
    for result in results:
        record = asdict(result)
        case = record.pop("case")
        case["dtype"] = str(case["dtype"]).removeprefix("torch.")
        found.append({**case, **record})
    return found


def draw_sweep(timings: Sequence[Timing], memories: Sequence[Memory], title: str) -> Figure:
    """Milliseconds and peak megabytes of a step against length, both axes logarithmic."""
    from ..inspect.figures import panels

    figure, ((left, right),) = panels(1, 2, (5.6, 4.6), title)
    _lines(left, {(t.name, t.case.length): t.milliseconds[1] for t in timings})
    left.set_ylabel("milliseconds a step")
    _lines(right, {(m.name, m.case.length): m.peak / _MB for m in memories})
    right.set_ylabel("peak megabytes a step")
    handles = {str(line.get_label()): line for axis in (left, right) for line in axis.get_lines()}
    figure.legend(list(handles.values()), list(handles), loc="outside right center", frameon=False, fontsize=9)
    return figure


def _lines(axis: Any, values: Mapping[tuple[str, int], float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name in dict.fromkeys(name for name, _ in values):
        points = sorted((length, value) for (owner, length), value in values.items() if owner == name)
        colour, dashes = _STYLES.get(name, ("tab:purple", "-"))
        axis.plot(*zip(*points, strict=True), color=colour, linestyle=dashes, marker="o", markersize=3, label=name)
    lengths = sorted({length for _, length in values})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xticks(lengths, [str(length) for length in lengths])
    axis.set_xlabel("length (tokens in a batch constant)")
    axis.grid(True, which="major", alpha=0.3)
