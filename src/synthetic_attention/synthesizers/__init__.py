"""The synthesizing functions: one file each, found by name; mixtures are names joined by "+", head groups by "/"."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

from .base import Dimensions, HeadGroups, Mixture, SynthesizingFunction, reset_map, reset_projection, resize, unwrap
from .registry import (
    OPTIONS,
    REGISTRY,
    SynthesizerOptions,
    default_options,
    functions_of,
    has_logits,
    head_counts,
    known,
    needs_max_length,
    parse,
    register,
    validate,
)
from .rotary import Rotary

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "OPTIONS",
    "REGISTRY",
    "Dimensions",
    "Mixture",
    "Rotary",
    "SynthesizerOptions",
    "SynthesizingFunction",
    "default_options",
    "functions_of",
    "has_logits",
    "known",
    "make_function",
    "needs_max_length",
    "register",
    "reset_map",
    "reset_projection",
    "resize",
    "unwrap",
    "validate",
]


def make_function(
    synthesizer: str, dims: Dimensions, options: SynthesizerOptions | None = None
) -> SynthesizingFunction:
    """Make the synthesizing function that `synthesizer` names; ValueError as `SynthesizerAttention` says."""
    validate(synthesizer, options, dims.num_heads, dims.group_size)
    if not has_logits(synthesizer):
        raise ValueError(
            f"got {synthesizer!r}; expected one of: {', '.join(known(layers=False))}, or several of them joined by "
            "'+' or '/'. A baseline takes the place of the whole layer: name it in SynthesizerConfig"
        )
    sizes = head_counts(synthesizer, dims.num_heads, dims.group_size)
    chosen, groups = options or {}, list[SynthesizingFunction]()
    for group, heads in zip(parse(synthesizer), sizes, strict=True):
        own = replace(dims, num_heads=heads)
        functions = [REGISTRY[name](own, **chosen.get(name, {})) for name in group.names]
        mixture = chosen.get("mixture", {})
        groups.append(functions[0] if len(functions) == 1 else Mixture(functions, own, **mixture))
    return groups[0] if len(groups) == 1 else HeadGroups(groups, sizes)
