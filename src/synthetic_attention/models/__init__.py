"""Hugging Face models with synthesized attention. Importing this registers them with the Auto classes."""

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from .causal_lm import SynthesizerForCausalLM
from .configuration import SynthesizerConfig
from .modeling import SynthesizerForConditionalGeneration, SynthesizerPreTrainedModel
from .sequence_classification import SynthesizerForSequenceClassification

__all__ = [
    "SynthesizerConfig",
    "SynthesizerForCausalLM",
    "SynthesizerForConditionalGeneration",
    "SynthesizerForSequenceClassification",
    "SynthesizerPreTrainedModel",
]

AutoConfig.register(SynthesizerConfig.model_type, SynthesizerConfig)
AutoModelForSeq2SeqLM.register(SynthesizerConfig, SynthesizerForConditionalGeneration)
AutoModelForCausalLM.register(SynthesizerConfig, SynthesizerForCausalLM)
AutoModelForSequenceClassification.register(SynthesizerConfig, SynthesizerForSequenceClassification)
