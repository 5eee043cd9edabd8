"""Options that several commands have, with the help that they show."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "PRESET_HELP",
    "Beams",
    "Device",
    "LengthPenalty",
    "MaxTokens",
    "MinTokens",
    "ModelDtype",
    "NoRepeatNgram",
    "SkipBadLines",
    "Truncate",
]

PRESET_HELP = "Size of model and how to train: demo, tiny, small, base, t5-tiny, t5-small, t5-base (docs/settings.md)."
Beams = Annotated[
    int | None,
    typer.Option(
        min=1, help="Beams of the search for text; 1 is greedy. [default: 4; of language-modeling, glue, superglue 1]"
    ),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        help="Hypotheses of n tokens are ranked by log-probability / n^penalty. [default: the task's, mostly 0.6]"
    ),
]
MinTokens = Annotated[int | None, typer.Option(min=0, help="Tokens of a text before it may end. [default: 0]")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="The most tokens that are written. [default: the task's]")]
NoRepeatNgram = Annotated[
    int | None, typer.Option(min=0, help="No n-gram of this length comes twice in a text. [default: 0, any may]")
]
SkipBadLines = Annotated[
    bool, typer.Option("--skip-bad-lines", help="Leave malformed lines of the data out, and count them.")
]
Truncate = Annotated[bool, typer.Option("--truncate", help="Short for --on-long truncate.")]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda or what else PyTorch has. [default: the accelerator that is there, or else cpu]"),
]
ModelDtype = Annotated[
    str, typer.Option("--dtype", help="float32, or bfloat16: the weights, and what is computed from them.")
]
