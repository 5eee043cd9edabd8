"""Time of a whole attention layer: every variant against PyTorch's and Hugging Face's own, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..attention import SynthesizerAttention
from .layers import BASELINE, Case, build_layers, check, run_step
from .timing import Quartiles, quartiles, take_turns

__all__ = ["FLOOR", "VARIANTS", "Share", "Timing", "profile_case", "time_case"]

VARIANTS = (
    *("random", "fixed_random", "factorized_random", "dense", "factorized_dense"),
    *("random+vanilla", "dense+vanilla", "vanilla"),
)
FLOOR = "floor of random"


@dataclass(frozen=True)
class Timing:
    """One layer in one case.

    Attributes:
        name: the layer.
        milliseconds: quartiles of a turn.
        ratio: quartiles of the baseline's time over this layer's, turn by turn: how many times as fast it is.
        difference: from the slow twin, relative; None for layers that are not ours.
    """

    case: Case
    training: bool
    name: str
    milliseconds: Quartiles
    ratio: Quartiles
    difference: float | None


@dataclass(frozen=True)
class Share:
    """What an operation takes of a step: milliseconds, its share, and how often it is called."""

    case: Case
    name: str
    operation: str
    milliseconds: float
    share: float
    calls: int


def time_case(
    case: Case, variants: Sequence[str], *, training: bool = True, repeats: int = 9, twins: bool = False
) -> list[Timing]:
    """Check each variant against its slow twin, then let all layers take turns.

    The floor, of training without a mask, is the time of a random layer's matrix products alone.

    Raises:
        RuntimeError: a variant differs from its slow twin.
        ValueError: an unknown variant, or sizes that do not fit.
    """
    torch.manual_seed(0)
    layers = build_layers(case, list(variants), twins)
    x, mask, g = case.inputs()
    differences = {
        layer.name: check(layer, case)
        for layer in layers
        if isinstance(layer.module, SynthesizerAttention) and not layer.name.endswith("(twin)")
    }
    turns: dict[str, Callable[[], object]] = {
        layer.name: partial(run_step, layer, x, mask, g, training) for layer in layers
    }
    if training and case.mask == "full":
        turns[FLOOR] = _products(case)
    times = take_turns(turns, repeats, device=case.device)
    base = torch.tensor(times[BASELINE])
    return [
        Timing(
            case,
            training,
            name,
            quartiles([1e3 * second for second in taken]),
            quartiles(base / torch.tensor(taken)),
            differences.get(name),
        )
        for name, taken in times.items()
    ]


def profile_case(case: Case, variants: Sequence[str], *, training: bool = True, steps: int = 5) -> list[Share]:
    """Where the time of a step of each variant goes, by PyTorch's operations, the dearest first."""
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(0)
    x, mask, g = case.inputs()
    shares = []
    for layer in build_layers(case, list(variants)):
        if layer.name not in variants:
            continue
        for _ in range(2):
            run_step(layer, x, mask, g, training)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(steps):
                run_step(layer, x, mask, g, training)
        events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
        total = sum(event.self_cpu_time_total for event in events)
        shares += [
            Share(
                case,
                layer.name,
                event.key.removeprefix("aten::").removeprefix("synthetic_attention::")[:40],
                event.self_cpu_time_total / 1e3 / steps,
                event.self_cpu_time_total / total,
                event.count // steps,
            )
            for event in events
        ]
    return shares


def _products(case: Case) -> Callable[[], None]:
    """The matrix products of a random layer, forward and backward, each into memory that is there already."""
    batch, length, width, heads = case.batch, case.length, case.width, case.heads
    where: dict[str, Any] = {"dtype": case.dtype, "device": case.device}
    tokens, weight = torch.randn(batch * length, width, **where), torch.randn(width, width, **where)
    wide, square = torch.empty_like(tokens), torch.empty_like(weight)
    scores = torch.rand(heads, length, length, **where)
    values = torch.randn(heads, batch * width // heads, length, **where)
    mixed, outer = torch.empty_like(values), torch.empty_like(scores)

    def products() -> None:
        for _ in range(2):
            torch.mm(tokens, weight.t(), out=wide)
            torch.mm(tokens, weight, out=wide)
            torch.mm(tokens.t(), tokens, out=square)
        torch.bmm(values, scores.mT, out=mixed)
        torch.bmm(values, scores, out=mixed)
        torch.bmm(values.mT, values, out=outer)

    return products
