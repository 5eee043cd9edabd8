"""Tasks: one file each, found by name. `base.py` defines the interface."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from ..errors import UserError, check_value

if TYPE_CHECKING:
    from .base import Task

__all__ = ["FORMER_OPTIONS", "UserError", "example_data", "get_task", "known_tasks", "make_task", "option_types"]

# Tasks are imported when they are used, so that the names alone do not import torch.
_HOMES = {
    "classification": ("classification", "Classification"),
    "dialogue": ("dialogue", "Dialogue"),
    "glue": ("glue", "Glue"),
    "language-modeling": ("language_modeling", "LanguageModeling"),
    "span-corruption": ("span_corruption", "SpanCorruption"),
    "summarization": ("summarization", "Summarization"),
    "superglue": ("glue", "SuperGlue"),
    "translation": ("translation", "Translation"),
}
# Options of tasks and training in older runs that have no effect any more.
FORMER_OPTIONS = frozenset({"packed", "stream", "streaming"})


def known_tasks() -> list[str]:
    """The names of the tasks."""
    return sorted(_HOMES)


def get_task(name: str) -> type[Task]:
    """The class of the task called `name`; raises UserError if there is none."""
    if name not in _HOMES:
        raise UserError(f"got unknown task {name!r}; expected one of: {', '.join(known_tasks())}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


def option_types(task: type[Task]) -> dict[str, Any]:
    """The options of a task, with their types."""
    hints = get_type_hints(task)
    return {field.name: hints[field.name] for field in fields(task)}


def make_task(name: str, options: Mapping[str, Any]) -> Task:
    """The task called `name` with these options; raises UserError for a wrong one."""
    task = get_task(name)
    types = option_types(task)
    options = {option: value for option, value in options.items() if option not in FORMER_OPTIONS}
    for option, value in options.items():
        if option not in types:
            raise UserError(f"got unknown option {option!r} of task {name}; expected some of: {', '.join(types)}")
        if isinstance(value, list) and any(isinstance(each, bool) for each in value):
            raise UserError(f'got {option}={value}; quote what YAML reads as these: {option}=["no", "yes"]')
        check_value(option, value, types[option])
        least = int(option.startswith("max_"))
        if isinstance(value, int) and value < least:
            raise UserError(f"got {option}={value}; expected at least {least}")
    for field in fields(task):
        if field.default is MISSING and field.name not in options:
            raise UserError(f"task {name} needs {field.name}; pass --{field.name} or --set {field.name}=…")
    return task(**options)


def example_data(name: str) -> tuple[Path, dict[str, Any]] | None:
    """Data for a task when the user names none, and the options that fit it; None for tasks without such data."""
    if name == "translation":
        # English and German phrases made from Babel's locale data.
        from ..data.phrases import LANGUAGES, default_data

        return default_data(), dict(zip(("source", "target"), LANGUAGES, strict=True))
    if name == "language-modeling":
        # The source of Python's standard library: running text, since its lines do not stand alone.
        from ..data.files import standard_library_data

        return standard_library_data(), {"mode": "blocks"}
    return None
