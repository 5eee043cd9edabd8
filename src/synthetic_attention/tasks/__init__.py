"""Tasks: one file each, found by name. `base.py` says what a task is."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    from .base import Task

__all__ = ["UserError", "get_task", "known_tasks"]

# A task is imported when it is asked for: the names alone must not cost an import of torch.
_HOMES = {
    "classification": ("classification", "Classification"),
    "dialogue": ("dialogue", "Dialogue"),
    "glue": ("glue", "Glue"),
    "language-modeling": ("language_modeling", "LanguageModeling"),
    "span-corruption": ("span_corruption", "SpanCorruption"),
    "summarization": ("summarization", "Summarization"),
    "superglue": ("superglue", "SuperGlue"),
    "translation": ("translation", "Translation"),
}


def known_tasks() -> list[str]:
    """The names of the tasks."""
    return sorted(_HOMES)


def get_task(name: str) -> type[Task[Any, Any]]:
    """The class of the task called `name`.

    Raises:
        UserError: no task has that name; the known ones are listed.
    """
    if name not in _HOMES:
        raise UserError(f"got unknown task {name!r}; expected one of: {', '.join(known_tasks())}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
