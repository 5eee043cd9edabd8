"""Hugging Face models with synthesized attention. Importing this registers them with the Auto classes."""

from transformers import AutoConfig, AutoModelForSeq2SeqLM

from .configuration import SynthesizerConfig
from .modeling import SynthesizerForConditionalGeneration, SynthesizerPreTrainedModel

__all__ = ["SynthesizerConfig", "SynthesizerForConditionalGeneration", "SynthesizerPreTrainedModel"]

AutoConfig.register(SynthesizerConfig.model_type, SynthesizerConfig)
AutoModelForSeq2SeqLM.register(SynthesizerConfig, SynthesizerForConditionalGeneration)
