"""Transformers whose attention weights are synthesized instead of computed from token pairs.

"Synthesizer: Rethinking Self-Attention in Transformer Models" (arXiv 2005.00743). Importing this package registers the
models with Hugging Face's Auto classes: import it before `AutoModel….from_pretrained`, or set `trust_remote_code=True`.
"""

from __future__ import annotations

from .attention import SynthesizerAttention
from .conversion import convert
from .export import export_model
from .generation import generate
from .kernels import attend, attention_weights
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

__version__ = "0.2.0"

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
]
