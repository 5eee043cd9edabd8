"""The task and its data, as `train` and `compare` are told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ..tasks.base import Task

__all__ = ["choose_task"]


def choose_task(
    task_class: type[Task[Any, Any]], data: Path | None, overrides: Sequence[str], shortcuts: Mapping[str, Any]
) -> tuple[Task[Any, Any], Path]:
    """The task with its options, and its data.

    Args:
        data: None for the task's own, where it has some.
        overrides: of `--set`.
        shortcuts: options of tasks that have an option of the command line.

    Raises:
        BadParameter: the data or an option is missing.
        UserError: an option cannot be.
    """
    from ..tasks.options import missing_options
    from ..training.settings import read_task_options

    options = read_task_options(task_class, overrides, shortcuts)
    if data is None:
        data, options = task_class.default_data(), {**task_class.default_options(), **options}
    if data is None:
        raise typer.BadParameter("--data is missing")
    for name in missing_options(task_class, options):
        raise typer.BadParameter(f"{f'--{name}' if name in shortcuts else f'--set {name}=…'} is missing")
    return task_class.from_options(options), data
