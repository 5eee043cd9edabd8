"""The synthesizing functions: one file each, found by name; mixtures are names joined by "+"."""

from __future__ import annotations

import importlib
import pkgutil
from typing import cast

from .base import Dimensions, SynthesizingFunction, reset_map, reset_projection, resize
from .mixture import Mixture, MixtureOptions
from .registry import (
    OPTIONS,
    REGISTRY,
    Options,
    SynthesizerOptions,
    caches_keys,
    has_logits,
    known,
    needs_max_length,
    parse,
    register,
    validate,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "OPTIONS",
    "REGISTRY",
    "Dimensions",
    "Mixture",
    "Options",
    "SynthesizerOptions",
    "SynthesizingFunction",
    "caches_keys",
    "has_logits",
    "known",
    "make_function",
    "needs_max_length",
    "parse",
    "register",
    "reset_map",
    "reset_projection",
    "resize",
    "validate",
]


def make_function(
    synthesizer: str, dims: Dimensions, options: SynthesizerOptions | None = None
) -> SynthesizingFunction:
    """Make the synthesizing function that `synthesizer` names.

    Raises:
        ValueError: an unknown name or option, a baseline, or no maximum length for a function that needs one.
    """
    names, chosen = parse(synthesizer), validate(synthesizer, options)
    if not has_logits(synthesizer):
        raise ValueError(
            f"got {synthesizer!r}; expected one of: {', '.join(known(layers=False))}, or several of them joined by "
            "'+'. A baseline takes the place of the whole layer: name it in SynthesizerConfig"
        )
    if dims.max_length is None and needs_max_length(synthesizer):
        raise ValueError(
            f"got no max_length for {synthesizer!r}; expected the longest sequence, for which it has parameters"
        )
    functions: list[SynthesizingFunction] = [REGISTRY[name](dims, chosen[name]) for name in names]
    return functions[0] if len(names) == 1 else Mixture(functions, dims, cast(MixtureOptions, chosen["mixture"]))
