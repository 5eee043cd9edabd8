"""Transformers whose attention weights are synthesized instead of computed from token pairs.

"Synthesizer: Rethinking Self-Attention in Transformer Models" (arXiv 2005.00743). Importing this package registers the
models with Hugging Face's Auto classes: import it before `AutoModel….from_pretrained`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._registration import register_when_needed

if TYPE_CHECKING:
    from .attention import SynthesizerAttention
    from .kernels import attend, attention_weights
    from .logits import InnerLogits, MixedLogits, OuterLogits, SharedLogits
    from .masks import Padding
    from .models import (
        SynthesizerConfig,
        SynthesizerForCausalLM,
        SynthesizerForConditionalGeneration,
        SynthesizerForSequenceClassification,
        SynthesizerPreTrainedModel,
    )

__version__ = "0.1.0"

# Names are loaded on first use: the command line has to answer before torch is imported.
_HOMES = {
    "SynthesizerAttention": "attention",
    "attend": "kernels",
    "attention_weights": "kernels",
    "InnerLogits": "logits",
    "MixedLogits": "logits",
    "OuterLogits": "logits",
    "SharedLogits": "logits",
    "Padding": "masks",
    "SynthesizerConfig": "models",
    "SynthesizerForCausalLM": "models",
    "SynthesizerForConditionalGeneration": "models",
    "SynthesizerForSequenceClassification": "models",
    "SynthesizerPreTrainedModel": "models",
}

__all__ = [
    "InnerLogits",
    "MixedLogits",
    "OuterLogits",
    "Padding",
    "SharedLogits",
    "SynthesizerAttention",
    "SynthesizerConfig",
    "SynthesizerForCausalLM",
    "SynthesizerForConditionalGeneration",
    "SynthesizerForSequenceClassification",
    "SynthesizerPreTrainedModel",
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


register_when_needed()
