"""Transformers whose attention weights are synthesized instead of computed from token pairs.

"Synthesizer: Rethinking Self-Attention in Transformer Models" (arXiv 2005.00743). Importing this package registers the
models with Hugging Face's Auto classes: import it before `AutoModel….from_pretrained`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "GroupedLogits",
    "InnerLogits",
    "MixedLogits",
    "OuterLogits",
    "SharedLogits",
    "SynthesizerAttention",
    "SynthesizerConfig",
    "SynthesizerForCausalLM",
    "SynthesizerForConditionalGeneration",
    "SynthesizerForMaskedLM",
    "SynthesizerForSequenceClassification",
    "SynthesizerForTokenClassification",
    "SynthesizerModel",
    "SynthesizerMultiheadAttention",
    "SynthesizerPreTrainedModel",
    "TokenLayout",
    "attend",
    "attention_weights",
    "convert",
    "export_model",
    "generate",
    "quantize_int8",
]


def _is_command() -> bool:
    """True in the process of the command `synthesizer`, which answers `--help` before torch is imported."""
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":
        # Python sets this while it imports the parent packages of the module to run.
        return f"{__name__}.cli" in sys.orig_argv
    return Path(program).name in ("synthesizer", "synthesizer.exe")


if TYPE_CHECKING or not _is_command():
    from .attention import SynthesizerAttention
    from .conversion import convert
    from .export import export_model
    from .generation import generate
    from .kernels import attend, attention_weights, quantize_int8
    from .layout import TokenLayout
    from .logits import GroupedLogits, InnerLogits, MixedLogits, OuterLogits, SharedLogits
    from .models import (
        SynthesizerConfig,
        SynthesizerForCausalLM,
        SynthesizerForConditionalGeneration,
        SynthesizerForMaskedLM,
        SynthesizerForSequenceClassification,
        SynthesizerForTokenClassification,
        SynthesizerModel,
        SynthesizerPreTrainedModel,
    )
    from .multihead_attention import SynthesizerMultiheadAttention


def __getattr__(name: str) -> Any:
    """Import a public name on first use, in the process of the command."""
    if name in __all__:
        for home in (
            "attention",
            "conversion",
            "export",
            "generation",
            "kernels",
            "layout",
            "logits",
            "models",
            "multihead_attention",
        ):
            module = importlib.import_module(f".{home}", __name__)
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
