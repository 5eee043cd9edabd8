"""Tasks: one file each, found by name. `base.py` defines the interface."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    from .base import Task

__all__ = ["UserError", "example_data", "get_task", "known_tasks"]

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


def known_tasks() -> list[str]:
    """The names of the tasks."""
    return sorted(_HOMES)


def get_task(name: str) -> type[Task]:
    """The class of the task called `name`; raises UserError if there is none."""
    if name not in _HOMES:
        raise UserError(f"got unknown task {name!r}; expected one of: {', '.join(known_tasks())}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


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
