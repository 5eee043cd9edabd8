"""Tables and JSON records of the measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from .flops import SIZE
from .generation import GenerationCase
from .harness import Measurement


def tables(found: Sequence[Measurement]) -> list[Table]:
    """The tables of layers or models that were measured alike."""
    if isinstance(found[0].case, GenerationCase):
        prompts = dict.fromkeys(each.case.prompt for each in found)
        parts = [[each for each in found if each.case.prompt == prompt] for prompt in prompts]
        return [table for part in parts for table in _generation_tables(part)]
    shown = {_speed_table: "milliseconds", _rate_table: "tflops", _memory_table: "peak"}
    return [make(found) for make, figure in shown.items() if any(getattr(each, figure) is not None for each in found)]


def _speed_table(found: Sequence[Measurement]) -> Table:
    """One row per layer, one column per shape: the speedup over the baseline."""
    title = f"speed, {_what(found)} ({found[0].name} = 1)"
    notes = [_spread(found), *_backends(found), *_checked(found)]
    return _shapes(title, "; ".join(notes), found, lambda each: f"{_median(each.ratio):.2f}")


def _rate_table(found: Sequence[Measurement]) -> Table:
    """One row per layer, one column per shape: TFLOP/s, and their share of the device's rate."""
    rate = next(each.tflops / each.share for each in found if each.tflops and each.share)
    size = f"{SIZE:,}³"
    return _shapes(
        f"TFLOP/s, {_what(found)}",
        f"matrix products of the equation; in brackets, % of the {rate:,.0f} TFLOP/s of one product of {size}",
        found,
        lambda each: f"{each.tflops or 0:,.0f} ({100 * (each.share or 0):.0f})",
    )


def _memory_table(found: Sequence[Measurement]) -> Table:
    """One row per layer, one column per shape: peak megabytes, and those kept for the backward."""
    caption = "memory without parameters and gradients; in brackets, what the forward keeps for the backward"
    return _shapes(
        f"peak MB, {_what(found)}",
        caption,
        found,
        lambda each: f"{(each.peak or 0) / 1e6:,.0f}" + (f" ({(each.kept or 0) / 1e6:,.0f})" if each.training else ""),
    )


def _backends(found: Sequence[Measurement]) -> list[str]:
    """The backend of each column, where it was chosen."""
    chosen = [f"{each.case.length} {each.backend}" for each in found if each.backend is not None]
    return [f"sdpa's backends: {', '.join(chosen)}"] if chosen else []


def _checked(found: Sequence[Measurement]) -> list[str]:
    """The length at which errors were measured, if it is not that of the column."""
    shorter = [each.checked[1] for each in found if each.checked is not None and each.checked[1] < each.case.length]
    return [f"errors of longer sequences were measured at {shorter[0]:,}"] if shorter else []


def _generation_tables(found: Sequence[Measurement]) -> list[Table]:
    """All figures of one case; or the speedup over the peer and the time of a token, one column per case."""
    case, peer = found[0].case, found[0].name
    shortest, longest = case.prompt
    prompt = f"{longest}" if shortest == longest else f"{shortest}–{longest}"
    title = f"{case.task}, {prompt} + {case.new_tokens} tokens, {case.layers} layers, {case.width} wide"
    if any(each.case != case or each.parameters is None for each in found):
        step = "milliseconds of a call ÷ new tokens of a sequence"
        return [
            _shapes(f"× {peer}, {title}", _spread(found), found, lambda each: f"{_median(each.ratio):.2f}"),
            _shapes(f"ms, {title}", step, found, lambda each: f"{_median(each.milliseconds) / case.new_tokens:.2f}"),
        ]
    table = Table(title=f"{title}, {_search(case)}", caption=_spread(found))
    table.add_column("model", no_wrap=True)
    for heading in ("tokens/s", f"× {peer}", "cache, MB", "parameters"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in found:
        speed = 1e3 * case.batch * case.new_tokens / _median(each.milliseconds)
        cells = f"{speed:,.0f}", f"{_median(each.ratio):.2f}", f"{(each.cache_bytes or 0) / 1e6:.1f}"
        table.add_row(each.name, *cells, f"{each.parameters:,}")
    return [table]


def records(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Plain values for JSON, without the figures that were not measured."""
    plain = []
    for each in found:
        figures = asdict(each)
        case = figures.pop("case")
        case["dtype"] = str(case["dtype"]).removeprefix("torch.")
        plain.append({**case, **{name: value for name, value in figures.items() if value is not None}})
    return plain


def _shapes(title: str, caption: str, found: Sequence[Measurement], cell: Callable[[Measurement], str]) -> Table:
    """One row per layer, one column per shape."""
    cases = list(dict.fromkeys(each.case for each in found))
    cells = {(each.name, each.case): each.problem or cell(each) for each in found}
    table = Table(title=title, caption=caption)
    table.add_column("", no_wrap=True)
    for case in cases:
        heading = _search(case) if isinstance(case, GenerationCase) else f"{case.batch}×{case.length}"
        table.add_column(heading, justify="right", no_wrap=True)
    for name in dict.fromkeys(each.name for each in found):
        table.add_row(name, *(cells.get((name, case), "") for case in cases))
    return table


def _search(case: GenerationCase) -> str:
    return f"{case.batch} greedy" if case.num_beams == 1 else f"{case.batch}, {case.num_beams} beams"


def _what(found: Sequence[Measurement]) -> str:
    return f"{found[0].case.mask}, {'forward + backward' if found[0].training else 'forward, inference'}"


def _median(values: tuple[float, float, float] | None) -> float:
    return float("nan") if values is None else values[1]


def _spread(found: Sequence[Measurement]) -> str:
    spread = max(((each.ratio[2] - each.ratio[0]) / each.ratio[1] for each in found if each.ratio), default=0.0)
    return f"medians over turns; the quartiles of a ratio are at most {100 * spread:.0f} % apart"
