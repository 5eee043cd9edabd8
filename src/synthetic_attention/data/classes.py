"""The classes of a data set, and how messages show values of files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import UserError

__all__ = ["Classes", "as_number", "listed", "shortened"]

# How many values, and how many letters of each, a message shows.
_SHOWN, _LETTERS = 10, 60


@dataclass(frozen=True)
class Classes:
    """The classes of a data set, in the order of their indices.

    Args:
        values: as the files write them.
        names: as people call them.
    """

    values: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, labels: Iterable[str], names: Sequence[str] = ()) -> Classes:
        """The classes that occur in `labels`, in the order of numbers if all are whole numbers, else of the alphabet.

        Args:
            names: what they are called, in that order; as the files write them if there are none.

        Raises:
            UserError: there are fewer than two classes, or not as many names, or they are numbers with fractions.
        """
        found = {*labels}
        numbers = {value: number for value in found if (number := as_number(value)) is not None}
        # Those that are equal as numbers, 1 and 1.0, in an order of their own: the order of a set is any.
        values = tuple(
            sorted(found, key=lambda value: (numbers[value], value) if len(numbers) == len(found) else value)
        )
        fractions = len(numbers) == len(found) and not all(number.is_integer() for number in numbers.values())
        if fractions and not names:
            raise UserError(
                f"got the classes {listed(values)}, which are numbers; pass --set regression=true, the column of the "
                "class with --set label=…, or names for the classes with --set classes=…"
            )
        if len(values) < 2:
            raise UserError(
                f"got {listed(values)} as the only class; expected at least two. Which column has it: --set label=…"
            )
        if names and len(names) != len(values):
            raise UserError(
                f"got {len(names)} class names for the {len(values)} classes {listed(values)}; pass as many with --set "
                "classes=…, or the column of the class with --set label=…"
            )
        return cls(values, tuple(names) or values)

    def index(self, label: str) -> int:
        """The index of the class that a file writes as `label`.

        Raises:
            UserError: there is no such class.
        """
        if label not in self.values:
            raise UserError(f"got class {shortened(label)!r}; expected one of: {listed(self.values)}")
        return self.values.index(label)


def listed(values: Sequence[str]) -> str:
    """The first of `values`, each at most a line long, and how many more there are."""
    more = f", … ({len(values) - _SHOWN} more)" if len(values) > _SHOWN else ""
    return ", ".join(map(shortened, values[:_SHOWN])) + more


def shortened(text: str) -> str:
    """The beginning of a text that is too long for a message."""
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…"


def as_number(text: str) -> float | None:
    """The number that a text is; None where it is none, or not finite."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
