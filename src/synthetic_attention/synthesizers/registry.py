"""Synthesizers by name, and their options: the synthesizing functions, mixtures of them, and the paper's baselines.

A class registers itself under its name. A function returns logits, and several joined by "+" mix; a baseline
is a whole layer in the place of `SynthesizerAttention`, and stands alone.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = [
    "REGISTRY",
    "Options",
    "SynthesizerOptions",
    "caches_keys",
    "has_logits",
    "known",
    "needs_max_length",
    "option_types",
    "parse",
    "register",
    "validate",
]

# Options by function or baseline, and those of mixtures under "mixture".
SynthesizerOptions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one synthesizer: none here, subclasses add fields.

    The annotation of a field gives the valid values: an int is at least 1, a float is positive and finite.

    Raises:
        ValueError: a value that is not valid.
    """

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in fields(self):
            value, kind = getattr(self, field.name), hints[field.name]
            if not _is_valid(value, kind):
                raise ValueError(f"got {field.name}={value!r}; expected {_describe(kind)}")

    def check(self, components: int, max_length: int | None) -> None:
        """Check the options against the synthesizer that they are for.

        Args:
            components: how many functions it is made of.
            max_length: the longest sequence, where known.

        Raises:
            ValueError: they do not fit.
        """


def _is_valid(value: object, kind: Any) -> bool:
    origin, members = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in members
    if origin in (Union, types.UnionType):
        return any(_is_valid(value, member) for member in members)
    if origin is Sequence:
        return isinstance(value, list | tuple) and bool(value) and all(_is_valid(v, members[0]) for v in value)
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and value >= 1
    if kind is float:
        return isinstance(value, int | float) and 0 < value < math.inf
    return value is None and kind is types.NoneType


def _describe(kind: Any) -> str:
    origin, members = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of: " + ", ".join(map(str, members))
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(member) for member in members if member is not types.NoneType)
    if origin is Sequence:
        return f"a list, each {_describe(members[0])}"
    names = {int: "a whole number of at least 1", float: "a positive number", bool: "true or false"}
    return names[kind]


# By name: synthesizing functions, and with `is_layer` the layers that take the place of `SynthesizerAttention`.
REGISTRY: dict[str, type[Any]] = {}
_OPTIONS: dict[str, type[Options]] = {}
_C = TypeVar("_C", bound=type[Any])


def register(name: str) -> Callable[[_C], _C]:
    """The decorator that makes a class known by its name; that of mixtures for its options only."""

    def decorate(cls: _C) -> _C:
        cls.name = name
        _OPTIONS[name] = cls.Options
        if name != "mixture":
            REGISTRY[name] = cls
        return cls

    return decorate


def known(*, layers: bool = True) -> list[str]:
    """The names of the synthesizing functions, then those of the baselines if `layers`."""
    functions = sorted(name for name, kind in REGISTRY.items() if not kind.is_layer)
    return [*functions, *sorted(REGISTRY.keys() - {*functions})] if layers else functions


def option_types() -> dict[str, type[Options]]:
    """The options by synthesizer, and those of mixtures under "mixture"."""
    return dict(_OPTIONS)


def parse(name: str) -> tuple[str, ...]:
    """Split "random+vanilla" into its functions; a baseline stands alone.

    Raises:
        ValueError: a name is unknown (the known ones are listed), or a baseline is in a mixture.
    """
    if not isinstance(name, str):
        raise ValueError(f"got synthesizer {name!r}; expected a name, or names joined by '+'")
    names = tuple(part.strip() for part in name.split("+"))
    for part in names:
        if part not in REGISTRY:
            functions, layers = known(layers=False), [n for n in known() if REGISTRY[n].is_layer]
            alone = f"; or, by itself, one of: {', '.join(layers)}" if layers else ""
            raise ValueError(
                f"got unknown synthesizer {part!r} in {name!r}; expected one of: {', '.join(functions)}, or several "
                f"of them joined by '+'{alone}"
            )
        if REGISTRY[part].is_layer and len(names) > 1:
            raise ValueError(f"got {part!r} in the mixture {name!r}; expected it alone: it has no logits to mix")
    return names


def validate(name: str, options: SynthesizerOptions | None = None, max_length: int | None = None) -> dict[str, Options]:
    """Check a synthesizer and all options without building anything.

    Args:
        name: a synthesizer.
        options: by function or baseline, and those of mixtures under "mixture"; others than those in `name` may have
            some too, for a model's other layers.
        max_length: the longest sequence, where known.

    Returns:
        The options of all that are named in either.

    Raises:
        ValueError: an unknown name, option or value.
    """
    names = parse(name)
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise ValueError(f"got synthesizer_options {options!r}; expected a mapping from function to its options")
    for owner in options:
        if owner not in _OPTIONS:
            raise ValueError(f"got options for unknown {owner!r}; expected one of: {', '.join(sorted(_OPTIONS))}")
    chosen = {owner: _read(owner, options.get(owner, {})) for owner in {*names, *options, "mixture"}}
    for owner in {*names, "mixture"}:
        chosen[owner].check(len(names), max_length)
    return chosen


def _read(owner: str, given: Any) -> Options:
    """The options of one synthesizer from a mapping.

    Raises:
        ValueError: no mapping, an unknown option (the known ones are listed), or a value that is not valid.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"got options {given!r} for {owner!r}; expected a mapping from option to value")
    kind = _OPTIONS[owner]
    names = [field.name for field in fields(kind)]
    for key in given:
        if key not in names:
            listed = ", ".join(names) or "none"
            raise ValueError(f"got unknown option {key!r} for {owner!r}; expected one of: {listed}")
    try:
        return kind(**given)
    except ValueError as error:
        raise ValueError(f"options of {owner!r}: {error}") from None


def has_logits(name: str) -> bool:
    """Whether it has logits of all pairs of tokens, which a bias can be added to."""
    return not REGISTRY[parse(name)[0]].is_layer


def needs_max_length(name: str) -> bool:
    """Whether anything in it has parameters up to a maximum length."""
    return any(REGISTRY[part].needs_max_length for part in parse(name))


def caches_keys(name: str) -> bool:
    """Whether decoding has to keep keys as well as values."""
    return any(REGISTRY[part].caches_keys for part in parse(name))
