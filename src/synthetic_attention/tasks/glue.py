"""GLUE from text to text: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE and WNLI with T5's prompts and label words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .benchmark_suite import BenchmarkSuite

__all__ = ["Glue"]


@dataclass(frozen=True)
class Glue(BenchmarkSuite):
    """GLUE; with `together` SuperGLUE too."""

    name: ClassVar[str] = "glue"
