"""What every score asks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["check_pairs", "check_references"]


def check_pairs(predictions: Sequence[object], golds: Sequence[object]) -> None:
    """Raises ValueError: there is nothing to score, or not as much on both sides."""
    if len(predictions) != len(golds) or not predictions:
        raise ValueError(
            f"got {len(predictions)} predictions and {len(golds)} references; expected as many, and at least one"
        )


def check_references(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raises ValueError: as `check_pairs`, or a hypothesis has no reference, or strings stand where lists should."""
    check_pairs(hypotheses, references)
    for row, several in enumerate(references):
        if isinstance(several, str) or not several:
            raise ValueError(f"got references[{row}]={several!r}; expected a list of at least one text")
