"""Tables and JSON records of the measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from .generation import GenerationCase
from .harness import Measurement, Quartiles


def tables(found: Sequence[Measurement]) -> Iterator[Table]:
    """The tables of layers or models that were measured alike."""
    first = found[0]
    if isinstance(first.case, GenerationCase):
        for prompt in dict.fromkeys(each.case.prompt for each in found):
            yield from _generation_tables([each for each in found if each.case.prompt == prompt])
        return
    what = f"{first.case.mask}, {'forward + backward' if first.training else 'forward, inference'}"
    if first.ratio:
        yield _table(f"speed, {what} ({first.name} = 1)", _spread(found), found, _ratio)
    if first.peak is not None:
        caption = "memory without parameters and gradients; in brackets, what the forward keeps for the backward"
        yield _table(f"peak MB, {what}", caption, found, _memory)


def _generation_tables(found: Sequence[Measurement]) -> Iterator[Table]:
    """The tables of models with prompts of the same lengths."""
    case, peer = found[0].case, found[0].name
    prompt = "–".join(str(length) for length in dict.fromkeys(case.prompt))
    title = f"{case.task}, {prompt} + {case.new_tokens} tokens, {case.layers} layers, {case.width} wide"
    step = "milliseconds of a call ÷ new tokens of a sequence"
    yield _table(f"× {peer}, {title}", _spread(found), found, _ratio)
    yield _table(f"ms, {title}", step, found, lambda each: f"{_median(each.milliseconds) / case.new_tokens:.2f}")
    if found[0].cache_bytes is not None:
        cached = "cached keys and values at the end; in brackets, millions of parameters"
        yield _table(f"cache MB, {title}", cached, found, _cache)


def _table(title: str, caption: str, found: Sequence[Measurement], cell: Callable[[Measurement], str]) -> Table:
    """One row per layer or model, one column per shape."""
    table = Table(title=title, caption=caption)
    table.add_column("", no_wrap=True)
    for case in dict.fromkeys(each.case for each in found):
        table.add_column(_shape(case), justify="right", no_wrap=True)
    for name in dict.fromkeys(each.name for each in found):
        table.add_row(name, *(cell(each) for each in found if each.name == name))
    return table


def _shape(case: Any) -> str:
    if not isinstance(case, GenerationCase):
        return f"{case.batch}×{case.length}"
    return f"{case.batch} greedy" if case.num_beams == 1 else f"{case.batch}, {case.num_beams} beams"


def _ratio(each: Measurement) -> str:
    return f"{_median(each.ratio):.2f}"


def _memory(each: Measurement) -> str:
    return f"{(each.peak or 0) / 1e6:,.0f}" + (f" ({(each.kept or 0) / 1e6:,.0f})" if each.training else "")


def _cache(each: Measurement) -> str:
    return f"{(each.cache_bytes or 0) / 1e6:.1f} ({(each.parameters or 0) / 1e6:.1f})"


def _median(values: Quartiles | None) -> float:
    return float("nan") if values is None else values[1]


def _spread(found: Sequence[Measurement]) -> str:
    spread = max((each.ratio[2] - each.ratio[0]) / each.ratio[1] for each in found if each.ratio)
    return f"medians over turns; the quartiles of a ratio are at most {100 * spread:.0f} % apart"


def records(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Plain values for JSON, without the figures that were not measured."""
    plain = []
    for each in found:
        figures = asdict(each)
        case = figures.pop("case")
        case["dtype"] = str(case["dtype"]).removeprefix("torch.")
        plain.append({**case, **{name: value for name, value in figures.items() if value is not None}})
    return plain
