"""The options of a task: the fields of its dataclass, checked before it is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from ..errors import UserError
from ..validation import check_value

if TYPE_CHECKING:
    from .base import Task

_T = TypeVar("_T", bound="Task[Any, Any]")


@cache
def option_types(task: type) -> dict[str, Any]:
    """The types of the options of a task class."""
    hints = get_type_hints(task)
    return {field.name: hints[field.name] for field in dataclasses.fields(task)}


def missing_options(task: type, options: Mapping[str, Any]) -> list[str]:
    """The options without default that are not given."""
    required = [field.name for field in dataclasses.fields(task) if field.default is dataclasses.MISSING]
    return [name for name in required if name not in options]


def chosen_options(task: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(task)}
    return {name: value for name, value in options.items() if value != defaults.get(name)}


def check_options(task: type, options: Mapping[str, Any]) -> None:
    """Raise UserError if an option is unknown, missing, or of the wrong type."""
    known, name = option_types(task), getattr(task, "name", task.__name__)
    for option, value in options.items():
        if option not in known:
            raise UserError(f"got unknown option {option!r} of task {name}; expected some of: {', '.join(known)}")
        check_value(option, value, known[option])
    for option in missing_options(task, options):
        raise UserError(f"task {name} needs {option}; pass --set {option}=…")


def replace_options(task: _T, options: Mapping[str, Any]) -> _T:
    """The task with other values of its `evaluation_options`; raises UserError for other options."""
    for option in options.keys() - task.evaluation_options:
        known = ", ".join(sorted(task.evaluation_options)) or "none"
        raise UserError(f"got {option} for the evaluation of task {task.name}; its options of evaluation: {known}")
    return type(task).from_options({**dataclasses.asdict(task), **options})
