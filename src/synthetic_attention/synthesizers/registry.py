"""Synthesizers by name, and their options: the synthesizing functions, mixtures of them, and the paper's baselines.

A class registers itself under its name. A function returns logits, and several joined by "+" mix; a baseline
is a whole layer in the place of `SynthesizerAttention`, and stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from ..validation import LIMIT, check_value

# Options by function or baseline, and those of mixtures under "mixture".
SynthesizerOptions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one synthesizer: none here, subclasses add fields.

    The annotation of a field gives the valid values; numbers have to be positive. Other values raise ValueError.
    """

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            check_value(name, value, kind)
            values = value if isinstance(value, list | tuple) else [value]
            if not values or any(type(each) in (int, float) and not 0 < each < LIMIT for each in values):
                raise ValueError(f"got {name}={value!r}; expected a positive number below {LIMIT}")


# By name: synthesizing functions, and with `is_layer` the layers that take the place of `SynthesizerAttention`.
REGISTRY: dict[str, type[Any]] = {}
# By the same names, and "mixture".
OPTIONS: dict[str, type[Options]] = {}
_C = TypeVar("_C", bound=type[Any])


def register(name: str) -> Callable[[_C], _C]:
    """The decorator that makes a class known by its name."""

    def decorate(cls: _C) -> _C:
        cls.name = name
        REGISTRY[name], OPTIONS[name] = cls, cls.Options
        return cls

    return decorate


def known(*, layers: bool = True) -> list[str]:
    """The names of the synthesizing functions, then those of the baselines if `layers`."""
    names = sorted(REGISTRY, key=lambda name: (REGISTRY[name].is_layer, name))
    return [name for name in names if layers or not REGISTRY[name].is_layer]


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
            raise ValueError(f"got unknown synthesizer {part!r} in {name!r}; expected one of: {', '.join(known())}")
        if REGISTRY[part].is_layer and len(names) > 1:
            raise ValueError(f"got {part!r} in the mixture {name!r}; expected it alone: it has no logits to mix")
    return names


def validate(name: str, options: SynthesizerOptions | None = None) -> dict[str, Options]:
    """Check a synthesizer and all options without building anything, and return the options of all that are named.

    Options may also be of functions that are not in `name`: those of a model's other layers.

    Raises:
        ValueError: an unknown name, option or value.
    """
    names, options = parse(name), {} if options is None else options
    check_value("synthesizer_options", options, dict[str, dict[str, Any]])
    read = {owner: _read(owner, options.get(owner, {})) for owner in dict.fromkeys((*options, *names, "mixture"))}
    if len(names) > 2 and getattr(read["mixture"], "gate", None) == "sigmoid":
        raise ValueError(
            f"got gate='sigmoid' for the {len(names)} components of {name!r}; expected two, or gate='softmax'"
        )
    return read


def _read(owner: str, given: Mapping[str, Any]) -> Options:
    if owner not in OPTIONS:
        raise ValueError(f"got options for unknown {owner!r}; expected one of: {', '.join(sorted(OPTIONS))}")
    valid = get_type_hints(OPTIONS[owner])
    for key in given:
        if key not in valid:
            listed = ", ".join(valid) or "none"
            raise ValueError(f"got unknown option {key!r} for {owner!r}; expected one of: {listed}")
    try:
        return OPTIONS[owner](**given)
    except ValueError as error:
        raise ValueError(f"options of {owner!r}: {error}") from None


def has_logits(name: str) -> bool:
    """Whether it has logits of all pairs of tokens, which a bias can be added to."""
    return not REGISTRY[parse(name)[0]].is_layer


def needs_max_length(name: str) -> bool:
    """Whether anything in it has parameters up to a maximum length."""
    return any(REGISTRY[part].per_position for part in parse(name))


def caches_keys(name: str) -> bool:
    """Whether decoding has to keep keys as well as values."""
    return any(REGISTRY[part].caches_keys for part in parse(name))
