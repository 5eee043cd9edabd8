"""--on-long: what becomes of an input that is longer than the model's maximum."""

from __future__ import annotations

from dataclasses import dataclass

import typer

__all__ = ["ON_LONG_HELP", "OnLong", "read_on_long"]

_CHOICES = ("error", "split", "truncate")
ON_LONG_HELP = (
    "What becomes of an input over the maximum length: error, split (into sentences, where need be into clauses or "
    "words, whose outputs are joined; not of a prompt), truncate. [default: error]"
)


@dataclass(frozen=True)
class OnLong:
    """The choice, as the functions that do it take it. `split_long` is None where it is off: not every task has it."""

    truncate: bool
    split_long: bool | None

    def describe(self, count: int, unit: str) -> str:
        """What became of `count` inputs, in words."""
        return f"{count} {unit} {'divided into sentences' if self.split_long else 'truncated'}"


def read_on_long(on_long: str | None, truncate: bool) -> OnLong:
    """The choice of --on-long, for which --truncate is a short form.

    Raises:
        BadParameter: it is none, or the two contradict each other.
    """
    if on_long is not None and on_long not in _CHOICES:
        raise typer.BadParameter(f"got --on-long {on_long}; expected one of: {', '.join(_CHOICES)}")
    if truncate and on_long not in (None, "truncate"):
        raise typer.BadParameter(f"--truncate and --on-long {on_long} exclude each other")
    return OnLong(truncate or on_long == "truncate", True if on_long == "split" else None)
