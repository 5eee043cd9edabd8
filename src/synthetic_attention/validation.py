"""Checks of values that users set."""

from __future__ import annotations

import difflib
import numbers
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

# Numbers are below this: sizes of tensors are 32-bit, and nothing overflows.
LIMIT = 2**31


def check_value(name: str, value: Any, kind: Any) -> None:
    """Raise ValueError unless a value has a type (a class, `Literal`, a union, a list, tuple or dict).

    Numbers have to be below 2³², which seeds are.
    """
    if not fits(value, kind):
        raise ValueError(f"got {name}={value!r}; expected {type_name(kind)}")
    if isinstance(value, int | float) and not abs(value) < 2**32:
        raise ValueError(f"got {name}={value}; expected a finite number below 2**32")


def check_size(name: str, value: Any) -> None:
    """Raise ValueError unless a value is a whole number, also NumPy's, of at least 1."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not 1 <= int(value) < LIMIT:
        raise ValueError(f"got {name}={value!r}; expected a whole number, at least 1 and below {LIMIT}")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value has a type; an int is a float too, a bool is neither."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, choice) for choice in get_args(kind))
    if kind is Any:
        return True
    if origin is Literal:
        return value in get_args(kind)
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(fits(entry, get_args(kind)[0]) for entry in value)
    if origin is dict:
        return isinstance(value, Mapping) and all(fits(entry, get_args(kind)[1]) for entry in value.values())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind


def type_name(kind: Any) -> str:
    """A type as messages name it."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(choice) for choice in get_args(kind))
    if origin is Literal:
        return f"one of: {', '.join(map(str, get_args(kind)))}"
    if origin in (list, tuple):
        return f"a list of {type_name(get_args(kind)[0])}"
    if origin is dict:
        return f"names, each with {type_name(get_args(kind)[1])}"
    return "null" if kind is type(None) else str(kind.__name__)


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """The most similar known key as a hint for a message; empty if none is similar. `gate` finds `mixture.gate`."""
    whole = {name: name for name in known}
    names = {name.rpartition(".")[2]: name for name in whole} | whole
    close = difflib.get_close_matches(key, names, n=1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""
