"""Hugging Face models with synthesized attention. Importing this package registers them with the Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.auto import modeling_auto

from .classifiers import SynthesizerForSequenceClassification, SynthesizerForTokenClassification
from .configuration import SynthesizerConfig
from .heads import SynthesizerForCausalLM, SynthesizerForConditionalGeneration, SynthesizerForMaskedLM
from .modeling import SynthesizerModel
from .pretrained import SynthesizerPreTrainedModel

__all__ = [
    "SynthesizerConfig",
    "SynthesizerForCausalLM",
    "SynthesizerForConditionalGeneration",
    "SynthesizerForMaskedLM",
    "SynthesizerForSequenceClassification",
    "SynthesizerForTokenClassification",
    "SynthesizerModel",
    "SynthesizerPreTrainedModel",
]

AutoConfig.register(SynthesizerConfig.model_type, SynthesizerConfig)
# lm-eval takes every model type in the table of these for an encoder-decoder: it is not added there.
AutoModelForSeq2SeqLM.register(SynthesizerConfig, SynthesizerForConditionalGeneration)
for task, auto_class, model in (
    ("", AutoModel, SynthesizerModel),
    ("FOR_CAUSAL_LM_", AutoModelForCausalLM, SynthesizerForCausalLM),
    ("FOR_MASKED_LM_", AutoModelForMaskedLM, SynthesizerForMaskedLM),
    ("FOR_SEQUENCE_CLASSIFICATION_", AutoModelForSequenceClassification, SynthesizerForSequenceClassification),
    ("FOR_TOKEN_CLASSIFICATION_", AutoModelForTokenClassification, SynthesizerForTokenClassification),
):
    auto_class.register(SynthesizerConfig, model)
    # Trainer (to shift the labels of a causal model for label smoothing), pipelines, model cards and `transformers
    # serve` look for the name of the class in these tables, to which `register` does not add.
    getattr(modeling_auto, f"MODEL_{task}MAPPING_NAMES")[SynthesizerConfig.model_type] = model.__name__
