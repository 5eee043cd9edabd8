"""Synthesizers by name, and their options: the synthesizing functions, mixtures of them, and the paper's baselines.

A class registers itself under its name. A function returns logits, and several joined by "+" mix; groups of heads,
joined by "/", each have a function or mixture of their own. A baseline is a whole layer in the place of
`SynthesizerAttention`, and stands alone.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from ..validation import LIMIT, check_value

# Options by function or baseline, and those of mixtures under "mixture".
SynthesizerOptions = Mapping[str, Mapping[str, Any]]

# By name: synthesizing functions, and with `is_layer` the layers that take the place of `SynthesizerAttention`.
REGISTRY: dict[str, type[Any]] = {}
# The same classes, and the mixture: their keyword-only arguments are options.
OPTIONS: dict[str, type[Any]] = {}
_C = TypeVar("_C", bound=type[Any])


def register(name: str) -> Callable[[_C], _C]:
    """The decorator that makes a class known by its name."""

    def decorate(cls: _C) -> _C:
        cls.name = name
        REGISTRY[name] = OPTIONS[name] = cls
        return cls

    return decorate


def known(*, layers: bool = True) -> list[str]:
    """The names of the synthesizing functions, then those of the baselines if `layers`."""
    names = sorted(REGISTRY, key=lambda name: (REGISTRY[name].is_layer, name))
    return [name for name in names if layers or not REGISTRY[name].is_layer]


class HeadGroup(NamedTuple):
    """Some heads of a layer: the functions that are mixed in them, and their number; None for a share."""

    names: tuple[str, ...]
    heads: int | None = None


def parse(name: str) -> tuple[HeadGroup, ...]:
    """Split "random:6/dense+vanilla:2" into groups of heads, and these into functions; a baseline stands alone.

    ValueError for an unknown name (it lists the known ones), malformed groups, and a baseline that is not alone.
    """
    if not isinstance(name, str):
        raise ValueError(f"got synthesizer {name!r}; expected a name, or names joined by '+' or '/'")
    grouped = "/" in name or ":" in name
    if grouped and not re.fullmatch(r"[^\s/:]+(:[1-9]\d{0,8})?(/[^\s/:]+(:[1-9]\d{0,8})?)+", name, re.ASCII):
        raise ValueError(
            f"got synthesizer {name!r}; expected groups of heads joined by '/', without spaces, each with a number of "
            "heads or none for a share: random:6/vanilla:2"
        )
    groups = []
    for group in name.split("/"):
        mixture, _, heads = group.partition(":")
        names = tuple(part.strip() for part in mixture.split("+"))
        for part in names:
            if part not in REGISTRY:
                raise ValueError(f"got unknown synthesizer {part!r} in {name!r}; expected one of: {', '.join(known())}")
            if REGISTRY[part].is_layer and (grouped or len(names) > 1):
                raise ValueError(f"got {part!r} in {name!r}; expected it alone: it has no logits to mix or to group")
        groups.append(HeadGroup(names, int(heads) if heads else None))
    return tuple(groups)


def functions_of(name: str) -> tuple[str, ...]:
    """The names of all functions in it, or of the baseline."""
    return tuple(part for group in parse(name) for part in group.names)


def group_size(num_heads: int, num_key_value_heads: int | None) -> int:
    """How many heads share a value and a key; one without `num_key_value_heads`. ValueError if these do not fit."""
    if num_key_value_heads is None:
        return 1
    if not 1 <= num_key_value_heads <= num_heads or num_heads % num_key_value_heads:
        raise ValueError(
            f"got num_key_value_heads={num_key_value_heads} with num_heads={num_heads}; expected a divisor of num_heads"
        )
    return num_heads // num_key_value_heads


def head_counts(name: str, num_heads: int, unit: int = 1) -> tuple[int, ...]:
    """How many heads each group has; those without a number share what the others leave, equally.

    All of `unit` heads that share a value have to be in one group. ValueError if the numbers do not fit.
    """
    given = [group.heads for group in parse(name)]
    left, sharing = num_heads - sum(heads or 0 for heads in given), given.count(None)
    if (left % sharing or left < sharing) if sharing else left:
        raise ValueError(
            f"got groups {name!r} in a layer of {num_heads} heads; expected numbers that add up to {num_heads}, or "
            "leave equal shares to the groups without one"
        )
    counts = tuple(left // sharing if heads is None else heads for heads in given)
    if any(heads % unit for heads in counts):
        raise ValueError(
            f"got groups of {counts} heads where {unit} heads share a value; expected multiples of {unit}: {name!r}"
        )
    return counts


def key_heads(name: str, num_heads: int, unit: int = 1) -> int:
    """How many keys a decoding cache has to keep for each token, where so many heads share one."""
    pairs = zip(parse(name), head_counts(name, num_heads, unit), strict=True)
    return sum(heads // unit * sum(REGISTRY[part].caches_keys for part in group.names) for group, heads in pairs)


def validate(name: str, options: SynthesizerOptions | None = None, num_heads: int | None = None, unit: int = 1) -> None:
    """Check a synthesizer and all options, which may also be of functions of a model's other layers.

    The annotation of an option gives its valid values; numbers have to be positive.

    Raises:
        ValueError: an unknown name, option or value, groups that do not fit the number of heads, or a baseline where
            several heads (`unit`) share a value.
    """
    groups, options = parse(name), {} if options is None else options
    if num_heads is not None:
        head_counts(name, num_heads, unit)
    if unit > 1 and not has_logits(name):
        raise ValueError(f"got {name!r} with num_key_value_heads; expected no baseline: it has a value for each head")
    check_value("synthesizer_options", options, dict[str, dict[str, Any]])
    for owner, given in options.items():
        if owner not in OPTIONS:
            raise ValueError(f"got options for unknown {owner!r}; expected one of: {', '.join(sorted(OPTIONS))}")
        known_options, make = default_options(owner), OPTIONS[owner].__init__
        for key, value in given.items():
            if key not in known_options:
                listed = ", ".join(known_options) or "none"
                raise ValueError(f"got unknown option {key!r} for {owner!r}; expected one of: {listed}")
            kind = inspect.get_annotations(make).get(key, Any)
            # Annotations of other arguments may have names that only type checkers import.
            check_value(f"{owner}.{key}", value, eval(kind, make.__globals__) if isinstance(kind, str) else kind)
            values = value if isinstance(value, list | tuple) else [value]
            if not values or any(type(each) in (int, float) and not 0 < each < LIMIT for each in values):
                raise ValueError(f"got {owner}.{key}={value!r}; expected a positive number below {LIMIT}")
    most = max(len(group.names) for group in groups)
    if most > 2 and options.get("mixture", {}).get("gate") == "sigmoid":
        raise ValueError(f"got gate='sigmoid' for the {most} components of {name!r}; expected two, or gate='softmax'")


def default_options(owner: str) -> dict[str, Any]:
    """The options of a function, of a baseline or of "mixture", and their defaults."""
    return inspect.getfullargspec(OPTIONS[owner].__init__).kwonlydefaults or {}


def has_logits(name: str) -> bool:
    """Whether it has logits of all pairs of tokens, which a bias can be added to."""
    return not REGISTRY[functions_of(name)[0]].is_layer


def needs_max_length(name: str) -> bool:
    """Whether anything in it has parameters up to a maximum length."""
    return any(REGISTRY[part].per_position for part in functions_of(name))
