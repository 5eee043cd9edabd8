"""SuperGLUE from text to text: BoolQ, CB, COPA, MultiRC, ReCoRD, RTE, WiC and WSC as T5 poses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .benchmark_suite import BenchmarkSuite

__all__ = ["SuperGlue"]


@dataclass(frozen=True)
class SuperGlue(BenchmarkSuite):
    """SuperGLUE; with `together` GLUE too."""

    name: ClassVar[str] = "superglue"
