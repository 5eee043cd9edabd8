"""The options of a task: the fields of its dataclass, checked before it is made."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import UserError

__all__ = ["check_options", "chosen_options", "missing_options", "option_types"]


@cache
def option_types(task: type) -> dict[str, Any]:
    """The types of the options of a class of tasks, by their names."""
    hints = get_type_hints(task)
    return {field.name: hints[field.name] for field in dataclasses.fields(task)}


def missing_options(task: type, options: Mapping[str, Any]) -> list[str]:
    """The options that have no default and are not given."""
    required = [
        field.name
        for field in dataclasses.fields(task)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return [name for name in required if name not in options]


def chosen_options(task: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not what they are by default."""
    defaults = {field.name: field.default for field in dataclasses.fields(task)}
    for field in dataclasses.fields(task):
        if field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
    return {name: value for name, value in options.items() if _plain(value) != _plain(defaults.get(name))}


def _plain(value: Any) -> Any:
    """A tuple as the list that it comes back as from a file."""
    return list(value) if isinstance(value, tuple) else value


def check_options(task: type, options: Mapping[str, Any]) -> None:
    """Refuse options that a task cannot be made with.

    Raises:
        UserError: an option is unknown (the known are listed), missing, or of another type.
    """
    known, name = option_types(task), getattr(task, "name", task.__name__)
    for option, value in options.items():
        if option not in known:
            expected = f"expected some of: {', '.join(known)}" if known else "it has none"
            raise UserError(f"got unknown option {option!r} of task {name}; {expected}")
        if not _fits(value, known[option]):
            quoted = '["…", "…"]' if isinstance(value, list | tuple) else '"…"'
            hint = f"; a text in quotes is one: --set '{option}={quoted}'" if _is_unquoted(value, known[option]) else ""
            raise UserError(f"got {option}={value!r}; expected {_written(known[option])}{hint}")
    for option in missing_options(task, options):
        raise UserError(f"task {name} needs {option}; pass --set {option}=…")


def _fits(value: Any, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in get_args(kind))
    if origin is Literal:
        return value in get_args(kind)
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(_fits(entry, get_args(kind)[0]) for entry in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    # A bool is an int to isinstance.
    return type(value) is kind


def _is_unquoted(value: Any, kind: Any) -> bool:
    """Whether `value` could be meant for a text: yes and 2.0 are none to YAML."""
    values = value if isinstance(value, list | tuple) else [value]
    return "str" in _written(kind) and any(isinstance(each, bool | int | float) for each in values)


def _written(kind: Any) -> str:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_written(choice) for choice in get_args(kind))
    if origin is Literal:
        return f"one of: {', '.join(map(str, get_args(kind)))}"
    if origin in (list, tuple):
        return f"a list of {_written(get_args(kind)[0])}"
    return "null" if kind is type(None) else str(kind.__name__)
