"""Tables and JSON records of the measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from .generation import GenerationCase
from .harness import Measurement


def tables(found: Sequence[Measurement]) -> list[Table]:
    """The tables of layers or models that were measured alike."""
    first = found[0]
    if isinstance(first.case, GenerationCase):
        prompts = dict.fromkeys(each.case.prompt for each in found)
        parts = [[each for each in found if each.case.prompt == prompt] for prompt in prompts]
        return [table for part in parts for table in _generation_tables(part)]
    what, made = f"{first.case.mask}, {'forward + backward' if first.training else 'forward, inference'}", []
    if any(each.milliseconds for each in found):
        title = f"speed, {what} ({first.name} = 1)"
        made.append(_shapes(title, _spread(found), found, lambda each: f"{_median(each.ratio):.2f}"))
    if any(each.peak is not None for each in found):
        caption = "memory without parameters and gradients; in brackets, what the forward keeps for the backward"
        made.append(_shapes(f"peak MB, {what}", caption, found, _memory))
    return made


def _memory(each: Measurement) -> str:
    return f"{(each.peak or 0) / 1e6:,.0f}" + (f" ({(each.kept or 0) / 1e6:,.0f})" if each.training else "")


def _generation_tables(found: Sequence[Measurement]) -> list[Table]:
    """All figures of one case; or the speedup over the peer and the time of a token, one column per case."""
    case, peer = found[0].case, found[0].name
    prompt = "–".join(str(length) for length in dict.fromkeys(case.prompt))
    title = f"{case.task}, {prompt} + {case.new_tokens} tokens, {case.layers} layers, {case.width} wide"
    if any(each.case != case or each.parameters is None for each in found):
        step = "milliseconds of a call ÷ new tokens of a sequence"
        return [
            _shapes(f"× {peer}, {title}", _spread(found), found, lambda each: f"{_median(each.ratio):.2f}"),
            _shapes(f"ms, {title}", step, found, lambda each: f"{_median(each.milliseconds) / case.new_tokens:.2f}"),
        ]
    table = _table(f"{title}, {_search(case)}", _spread(found), "tokens/s", f"× {peer}", "cache, MB", "parameters")
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
    cells = {(each.name, each.case): cell(each) for each in found}
    table = _table(title, caption, *map(_search, cases))
    for name in dict.fromkeys(each.name for each in found):
        table.add_row(name, *(cells.get((name, case), "") for case in cases))
    return table


def _table(title: str, caption: str, *headings: str) -> Table:
    table = Table(title=title, caption=caption)
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _search(case: Any) -> str:
    if not isinstance(case, GenerationCase):
        return f"{case.batch}×{case.length}"
    return f"{case.batch} greedy" if case.num_beams == 1 else f"{case.batch}, {case.num_beams} beams"


def _median(values: tuple[float, float, float] | None) -> float:
    return float("nan") if values is None else values[1]


def _spread(found: Sequence[Measurement]) -> str:
    spread = max(((each.ratio[2] - each.ratio[0]) / each.ratio[1] for each in found if each.ratio), default=0.0)
    return f"medians over turns; the quartiles of a ratio are at most {100 * spread:.0f} % apart"
