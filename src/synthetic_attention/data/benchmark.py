"""What GLUE and SuperGLUE have in common: an example, and how a task is laid out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .lines import MalformedLineError

__all__ = ["BenchmarkTask", "Example", "NoFileError", "find_file", "label_index"]


class NoFileError(UserError):
    """A task has no file of a split."""


@dataclass(frozen=True)
class Example:
    """One example of GLUE or SuperGLUE.

    Args:
        id: the official index, else the number of the example from 0, as official predictions count.
        texts: the texts, named and ordered as in T5's prompts.
        label: the class, an index of the task's `labels`; the score of STS-B; None where it is hidden (test files), and
            for ReCoRD, which has `answers`.
        group: the question that the answers of MultiRC are grouped by.
        answers: right answers of ReCoRD, each once, sorted.
    """

    id: str
    texts: dict[str, str]
    label: int | float | None = None
    group: str = ""
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class BenchmarkTask:
    """How a task is named and laid out.

    Args:
        name: T5's name of it, which begins the prompt.
        folder: the official folder of its files.
        texts: the texts of an example, named and ordered as in T5's prompts.
        labels: the label words, by class; none for a task without classes.
    """

    name: str
    folder: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]


def label_index(value: object, labels: tuple[str, ...]) -> int:
    """The class that a file names by its label word, by its number from 0, or by true and false.

    Raises:
        MalformedLineError: it is none of them.
    """
    text = str(value)
    if text in labels:
        return labels.index(text)
    if isinstance(value, bool) and len(labels) == 2:
        return int(value)
    if text.isdecimal() and int(text) < len(labels):
        return int(text)
    raise MalformedLineError(f"got label {text!r}; expected one of: {', '.join(labels)}, or 0 … {len(labels) - 1}")


def find_file(data: Path, folder: str, names: tuple[str, ...], folders: Collection[str] = ()) -> Path:
    """The first of `names` that lies in `data`/`folder`, or in `data` itself; `data` where it is a file.

    Args:
        folders: those of all tasks: files of another task are called the same.

    Raises:
        NoFileError: there is none; the message says what was looked for.
    """
    if data.is_file():
        return data
    others = {name.lower() for name in folders} - {folder.lower()}
    for place in (data / folder, data) if data.resolve().name.lower() not in others else (data / folder,):
        for name in names:
            if (place / name).is_file():
                return place / name
    raise NoFileError(f"{data / folder}: no file {' | '.join(names)}")
