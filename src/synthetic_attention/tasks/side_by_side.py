"""The best and the worst outputs of an evaluation beside what they were made from, as Markdown to read."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Scored", "best_and_worst"]

_SHOWN = 5
# Characters of a text, which may be a whole article, and of a line of it.
_LONGEST, _WIDTH = 2000, 110


@dataclass(frozen=True)
class Scored:
    """One output.

    Attributes:
        id: as the data has it.
        source: what the model read.
        references: what it was to write.
        output: what it wrote.
        score: of this output alone.
    """

    id: str
    source: str
    references: Sequence[str]
    output: str
    score: float


def best_and_worst(split: str, score: str, outputs: Sequence[Scored], shown: int = _SHOWN) -> str:
    """The `shown` outputs with the highest scores and as many with the lowest, none twice; the extremes come first.

    Args:
        split: what the data is called.
        score: the name of the score.
    """
    ranked = sorted(outputs, key=lambda output: -output.score)
    best, worst = ranked[:shown], ranked[shown:][::-1][:shown]
    lines = [f"# {split}: best and worst of {len(outputs):,} by {score}", ""]
    for title, chosen in (("Best", best), ("Worst", worst)):
        if chosen:
            lines += [f"## {title}", ""]
        for output in chosen:
            lines += [f"### {output.id}: {score} {output.score:.2f}", "", *_texts(output)]
    return "\n".join(lines)


def _texts(output: Scored) -> Iterator[str]:
    for name, text in (
        ("source", output.source),
        *((f"reference {number}", text) for number, text in enumerate(output.references, start=1)),
        ("output", output.output),
    ):
        yield from (name, "", *_block(text), "")


def _block(text: str) -> list[str]:
    """A text as it is, whatever characters it has: Markdown leaves alone what is between fences."""
    text = " ".join(text.split())
    left_out = len(text) - _LONGEST
    if left_out > 0:
        text = f"{text[:_LONGEST]} … ({left_out:,} characters more)"
    fence = "~" * max(3, *(len(run) + 1 for run in re.findall("~+", text)), 3)
    return [fence, *textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False), fence]
