"""Tables of the measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

# As `measurement` returns them.
Measurement = Mapping[str, Any]


def tables(found: Sequence[Measurement]) -> Iterator[Table]:
    """The tables of layers or models that were measured alike."""
    first = found[0]
    if "prompt" in first:
        for prompt in dict.fromkeys(each["prompt"] for each in found):
            yield from _generation_tables([each for each in found if each["prompt"] == prompt])
        return
    what = f"{first['mask']}, {'forward + backward' if first['training'] else 'forward, inference'}"
    if "ratio" in first:
        yield _table(f"speed, {what} ({first['name']} = 1)", _spread(found), found, _ratio)
    if "peak" in first:
        caption = "memory without parameters and gradients; in brackets, what the forward keeps for the backward"
        yield _table(f"peak MB, {what}", caption, found, _memory)


def _generation_tables(found: Sequence[Measurement]) -> Iterator[Table]:
    """The tables of models with prompts of the same lengths."""
    case, new_tokens = found[0], found[0]["new_tokens"]
    prompt = "–".join(str(length) for length in dict.fromkeys(case["prompt"]))
    title = f"{case['task']}, {prompt} + {new_tokens} tokens, {case['layers']} layers, {case['width']} wide"
    step = "milliseconds of a call ÷ new tokens of a sequence"
    yield _table(f"× {case['name']}, {title}", _spread(found), found, _ratio)
    yield _table(f"ms, {title}", step, found, lambda each: f"{each['milliseconds'][1] / new_tokens:.2f}")
    if "cache_bytes" in case:
        cached = "cached keys and values at the end; in brackets, millions of parameters"
        yield _table(f"cache MB, {title}", cached, found, _cache)


def _table(title: str, caption: str, found: Sequence[Measurement], cell: Callable[[Measurement], str]) -> Table:
    """One row per layer or model, one column per shape."""
    table = Table(title=title, caption=caption)
    table.add_column("", no_wrap=True)
    for shape in dict.fromkeys(map(_shape, found)):
        table.add_column(shape, justify="right", no_wrap=True)
    for name in dict.fromkeys(each["name"] for each in found):
        table.add_row(name, *(cell(each) for each in found if each["name"] == name))
    return table


def _shape(each: Measurement) -> str:
    if "length" in each:
        return f"{each['batch']}×{each['length']}"
    return f"{each['batch']} greedy" if each["num_beams"] == 1 else f"{each['batch']}, {each['num_beams']} beams"


def _ratio(each: Measurement) -> str:
    return f"{each['ratio'][1]:.2f}"


def _memory(each: Measurement) -> str:
    return f"{each['peak'] / 1e6:,.0f}" + (f" ({each['kept'] / 1e6:,.0f})" if each["training"] else "")


def _cache(each: Measurement) -> str:
    return f"{each['cache_bytes'] / 1e6:.1f} ({each['parameters'] / 1e6:.1f})"


def _spread(found: Sequence[Measurement]) -> str:
    spread = max((each["ratio"][2] - each["ratio"][0]) / each["ratio"][1] for each in found)
    return f"medians over turns; the quartiles of a ratio are at most {100 * spread:.0f} % apart"
