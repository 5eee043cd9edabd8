"""`key=value` and other values that come as text from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ..tasks import UserError
from ..tasks.base import Task
from ..tasks.options import option_types
from .failures import one_line

__all__ = ["parse_override", "parse_synthesizer", "read_task_options", "split_override"]


def read_task_options(
    task: type[Task[Any, Any]], overrides: Sequence[str], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The options of a task: those `given` that are not None, and those of `overrides` that are its own.

    Raises:
        UserError: an option is given twice, or not as YAML writes a value.
    """
    options = {name: value for name, value in (given or {}).items() if value is not None}
    types = option_types(task)
    for override in overrides:
        key, text = split_override(override)
        if key not in types:
            continue
        if key in options:
            raise UserError(f"got {key} twice; give it once")
        # Text stays as it is, but for quotes round it: YAML reads no, the suffix of Norwegian files, as false.
        options[key] = text.strip() if types[key] is str and not _is_quoted(text) else _yaml(text)
    return options


def parse_synthesizer(text: str) -> str | list[str] | dict[str, Any]:
    """A name as it is; a list or {encoder: …, decoder: …} from YAML."""
    return _yaml(text) if text.lstrip().startswith(("[", "{")) else text


def split_override(override: str) -> tuple[str, str]:
    """Key and text of `key=value`.

    Raises:
        UserError: it is not of that form.
    """
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"got --set {override!r}; expected key=value")
    return key.strip(), value


def parse_override(override: str) -> tuple[str, Any]:
    """Key and value of `key=value`.

    Raises:
        UserError: it is not of that form, or the value is not YAML.
    """
    key, value = split_override(override)
    return key, _yaml(value)


def _is_quoted(text: str) -> bool:
    return text.strip()[:1] in ("'", '"')


def _yaml(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"got {text!r}; expected a value as YAML writes it: {one_line(error)}") from None
    # YAML 1.1 reads 1:30 as a number to the base of 60.
    if isinstance(value, int | float) and ":" in text:
        return text
    if not isinstance(value, str):
        return value
    # YAML 1.1 reads 1e-3 as a string, for want of a point. What is in quotes is one because somebody says so.
    if _is_quoted(text):
        return value
    try:
        return float(value)
    except ValueError:
        return value
