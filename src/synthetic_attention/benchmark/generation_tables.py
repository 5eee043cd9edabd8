"""The benchmark of generation as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from .generation import Generation, Profile

__all__ = ["generation_records", "generation_table", "step_table"]


def generation_table(results: Sequence[Generation]) -> Table:
    """A row per model: how fast it generates, how many times as fast as the peer, and what its cache holds."""
    setting, peer = results[0].setting, results[0].name
    search = "greedy" if setting.beams == 1 else f"{setting.beams} beams"
    spread = max((r.ratio[2] - r.ratio[0]) / r.ratio[1] for r in results)
    table = Table(
        title=f"{setting.task}, {setting.batch} × ({setting.prompt} + {setting.new_tokens}) tokens, {search}, "
        f"{setting.layers} layers, {setting.width} wide",
        caption=f"medians of turns; the quartiles of a ratio are at most {100 * spread:.0f} % apart",
    )
    table.add_column("model", no_wrap=True)
    for heading in ("tokens/s", f"× {peer}", "cache, MB", "parameters"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            result.name,
            f"{result.tokens_per_second[1]:,.0f}",
            f"{result.ratio[1]:.2f}",
            f"{result.cache_bytes / 1e6:.1f}",
            f"{result.parameters:,}",
        )
    return table


def step_table(profiles: Sequence[Profile], operations: int = 10) -> Table:
    """Milliseconds of a decoding step: a row per operation, the dearest of all models first, a column per model."""
    setting = profiles[0].setting
    names = {name for profile in profiles for name in profile.operations}
    dearest = sorted(names, key=lambda name: -max(profile.operations.get(name, 0.0) for profile in profiles))
    table = Table(
        title=f"milliseconds a step, {setting.batch} sequences of up to {setting.longest} tokens",
        caption="operations with the profiler's own costs, the whole step without them",
    )
    table.add_column("operation", no_wrap=True)
    for profile in profiles:
        table.add_column(profile.name, justify="right", no_wrap=True)
    for name in dearest[:operations]:
        table.add_row(name, *(f"{profile.operations.get(name, 0.0):.2f}" for profile in profiles))
    rest = [sum(profile.operations.get(name, 0.0) for name in dearest[operations:]) for profile in profiles]
    table.add_row("other operations", *(f"{milliseconds:.2f}" for milliseconds in rest))
    table.add_row("the whole step", *(f"{profile.step:.2f}" for profile in profiles))
    return table


def generation_records(results: Sequence[Generation]) -> list[dict[str, Any]]:
    """Plain values, as JSON keeps them."""
    found = []
    for result in results:
        record = asdict(result)
        setting = record.pop("setting")
        setting["dtype"] = str(setting["dtype"]).removeprefix("torch.")
        found.append({**setting, **record})
    return found
