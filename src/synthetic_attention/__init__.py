"""Transformers whose attention weights are synthesized instead of computed from token pairs.

"Synthesizer: Rethinking Self-Attention in Transformer Models" (arXiv 2005.00743). Importing this package registers the
models with Hugging Face's Auto classes: import it before `AutoModel….from_pretrained`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention import SynthesizerAttention
    from .kernels import attend, attention_weights
    from .layout import TokenLayout
    from .logits import InnerLogits, MixedLogits, OuterLogits, SharedLogits
    from .models import (
        SynthesizerConfig,
        SynthesizerForCausalLM,
        SynthesizerForConditionalGeneration,
        SynthesizerForSequenceClassification,
        SynthesizerModel,
        SynthesizerPreTrainedModel,
    )

__version__ = "0.1.0"

# Names are imported on first use, because `synthesizer --help` must answer before torch is imported.
_HOMES = {
    "SynthesizerAttention": "attention",
    "attend": "kernels",
    "attention_weights": "kernels",
    "InnerLogits": "logits",
    "MixedLogits": "logits",
    "OuterLogits": "logits",
    "SharedLogits": "logits",
    "TokenLayout": "layout",
    "SynthesizerConfig": "models",
    "SynthesizerForCausalLM": "models",
    "SynthesizerForConditionalGeneration": "models",
    "SynthesizerForSequenceClassification": "models",
    "SynthesizerModel": "models",
    "SynthesizerPreTrainedModel": "models",
}

__all__ = [
    "InnerLogits",
    "MixedLogits",
    "OuterLogits",
    "SharedLogits",
    "SynthesizerAttention",
    "SynthesizerConfig",
    "SynthesizerForCausalLM",
    "SynthesizerForConditionalGeneration",
    "SynthesizerForSequenceClassification",
    "SynthesizerModel",
    "SynthesizerPreTrainedModel",
    "TokenLayout",
    "attend",
    "attention_weights",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_command() -> bool:
    """True in the process of the command `synthesizer`, which imports the models when it needs them."""
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":
        # Python sets this while it imports the parent packages of the module to run.
        return f"{__name__}.cli" in sys.orig_argv
    return Path(program).name in ("synthesizer", "synthesizer.exe")


if not _is_command():
    # Registers the models with the Auto classes.
    importlib.import_module(f"{__name__}.models")
