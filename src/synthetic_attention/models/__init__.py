"""Hugging Face models with synthesized attention. Importing this package registers them with the Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from .causal_lm import SynthesizerForCausalLM
from .conditional_generation import SynthesizerForConditionalGeneration
from .configuration import SynthesizerConfig
from .modeling import SynthesizerModel, SynthesizerPreTrainedModel
from .sequence_classification import SynthesizerForSequenceClassification

__all__ = [
    "SynthesizerConfig",
    "SynthesizerForCausalLM",
    "SynthesizerForConditionalGeneration",
    "SynthesizerForSequenceClassification",
    "SynthesizerModel",
    "SynthesizerPreTrainedModel",
]

AutoConfig.register(SynthesizerConfig.model_type, SynthesizerConfig)
AutoModel.register(SynthesizerConfig, SynthesizerModel)
AutoModelForSeq2SeqLM.register(SynthesizerConfig, SynthesizerForConditionalGeneration)
AutoModelForCausalLM.register(SynthesizerConfig, SynthesizerForCausalLM)
AutoModelForSequenceClassification.register(SynthesizerConfig, SynthesizerForSequenceClassification)
