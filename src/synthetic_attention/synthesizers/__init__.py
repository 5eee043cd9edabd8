"""The synthesizing functions: one file each, found by name; mixtures are names joined by "+", head groups by "/"."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from .base import Dimensions, SynthesizingFunction, reset_map, reset_projection, resize, unwrap
from .head_groups import HeadGroups
from .mixture import Mixture, MixtureOptions
from .registry import (
    OPTIONS,
    REGISTRY,
    Options,
    SynthesizerOptions,
    functions_of,
    group_size,
    has_logits,
    head_counts,
    key_heads,
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
    "Options",
    "Rotary",
    "SynthesizerOptions",
    "SynthesizingFunction",
    "functions_of",
    "group_size",
    "has_logits",
    "key_heads",
    "known",
    "make_function",
    "needs_max_length",
    "parse",
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
    """Make the synthesizing function that `synthesizer` names.

    Raises:
        ValueError: an unknown name or option, a baseline, or no maximum length for a function that needs one.
    """
    chosen = validate(synthesizer, options, dims.num_heads, dims.group_size)
    if not has_logits(synthesizer):
        raise ValueError(
            f"got {synthesizer!r}; expected one of: {', '.join(known(layers=False))}, or several of them joined by "
            "'+' or '/'. A baseline takes the place of the whole layer: name it in SynthesizerConfig"
        )
    if dims.max_length is None and needs_max_length(synthesizer):
        raise ValueError(
            f"got no max_length for {synthesizer!r}; expected the longest sequence, for which it has parameters"
        )
    sizes = head_counts(synthesizer, dims.num_heads, dims.group_size)
    functions = [
        _make_group(group.names, replace(dims, num_heads=heads), chosen)
        for group, heads in zip(parse(synthesizer), sizes, strict=True)
    ]
    return functions[0] if len(functions) == 1 else HeadGroups(functions, sizes)


def _make_group(names: Sequence[str], dims: Dimensions, options: Mapping[str, Options]) -> SynthesizingFunction:
    """A function, or a mixture of several, for the heads of `dims`."""
    functions: list[SynthesizingFunction] = [REGISTRY[name](dims, options[name]) for name in names]
    return functions[0] if len(names) == 1 else Mixture(functions, dims, cast(MixtureOptions, options["mixture"]))
