"""The synthesizing functions: a file each, found by name; mixtures are names joined by "+"."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import torch

from .base import REGISTRY, Dimensions, Options, Span, SynthesizingFunction, read_options, register
from .mixture import Mixture, MixtureOptions

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Dimensions",
    "Span",
    "SynthesizingFunction",
    "UnknownSynthesizerError",
    "build",
    "known",
    "needs_max_length",
    "parse",
    "register",
    "validate",
]

SynthesizerOptions = Mapping[str, Mapping[str, Any]]


def known() -> list[str]:
    """The names of the synthesizing functions."""
    return sorted(REGISTRY)


class UnknownSynthesizerError(ValueError):
    """A name that is of no synthesizing function."""


def parse(synthesizer: str) -> tuple[str, ...]:
    """Split "random+vanilla" into its functions.

    Raises:
        UnknownSynthesizerError: a name is unknown; the known ones are listed.
        ValueError: it is no name.
    """
    if not isinstance(synthesizer, str):
        raise ValueError(f"got synthesizer {synthesizer!r}; expected a name, or names joined by '+'")
    names = tuple(name.strip() for name in synthesizer.split("+"))
    for name in names:
        if name not in REGISTRY:
            raise UnknownSynthesizerError(
                f"got unknown synthesizer {name!r} in {synthesizer!r}; expected one of: {', '.join(known())}, "
                "or several of them joined by '+'"
            )
    return names


def validate(
    synthesizer: str, options: SynthesizerOptions | None = None, max_length: int | None = None
) -> dict[str, Options]:
    """Check a synthesizer and all options without building anything.

    Args:
        synthesizer: a name, or names joined by "+".
        options: options by function name, and those of mixtures under "mixture"; functions that are not in
            `synthesizer` may have some too, for a model's other layers.
        max_length: the longest sequence, where known.

    Returns:
        The options of every function named in either, by name.

    Raises:
        ValueError: an unknown name, option or value.
    """
    names = parse(synthesizer)
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise ValueError(f"got synthesizer_options {options!r}; expected a mapping from function to its options")
    kinds: dict[str, type[Options]] = {name: cls.Options for name, cls in REGISTRY.items()}
    kinds["mixture"] = MixtureOptions
    for name, given in options.items():
        if name not in kinds:
            raise ValueError(f"got options for unknown {name!r}; expected one of: {', '.join(sorted(kinds))}")
        if not isinstance(given, Mapping):
            raise ValueError(f"got options {given!r} for {name!r}; expected a mapping from option to value")
    wanted = {*names, *options, "mixture"}
    chosen = {name: read_options(kinds[name], name, options.get(name, {})) for name in sorted(wanted)}
    for name in {*names, "mixture"}:
        chosen[name].check(len(names), max_length)
    return chosen


def needs_max_length(synthesizer: str) -> bool:
    """Whether any function of the synthesizer has parameters up to a maximum length."""
    return any(REGISTRY[name].needs_max_length for name in parse(synthesizer))


def build(
    synthesizer: str,
    dims: Dimensions,
    options: SynthesizerOptions | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> SynthesizingFunction:
    """Make the function that `synthesizer` names.

    Raises:
        ValueError: an unknown name or option, or no maximum length for a function that needs one.
    """
    chosen = validate(synthesizer, options, dims.max_length)
    if dims.max_length is None and needs_max_length(synthesizer):
        raise ValueError(f"got no max_length for {synthesizer!r}; expected the longest sequence it will see")
    parts = [REGISTRY[name](dims, chosen[name], device, dtype) for name in parse(synthesizer)]
    if len(parts) == 1:
        return parts[0]
    mixture_options = chosen["mixture"]
    assert isinstance(mixture_options, MixtureOptions)
    return Mixture(parts, dims, mixture_options, device, dtype)
