"""Small models of every family that can be converted, with all weights drawn."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from training.conftest import _one_thread

__all__ = ["_one_thread"]

# A different prime for each size. (The cache of transformers' T5 has as many layers as its encoder.)
_TOKENS = {"vocab_size": 53, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_T5 = {"vocab_size": 53, "d_model": 22, "d_kv": 7, "num_heads": 3, "d_ff": 31, "num_layers": 3, "num_decoder_layers": 2}
_T5 |= {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "relative_attention_num_buckets": 6}
_T5 |= {"relative_attention_max_distance": 5, "dropout_rate": 0.0}
_BART = {"d_model": 22, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 31, "decoder_ffn_dim": 31}
_BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 17, "dropout": 0.0}
_BART |= {**_TOKENS, "decoder_start_token_id": 2, "scale_embedding": True}
_BERT = {"hidden_size": 22, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 31}
_BERT |= {"max_position_embeddings": 19, "num_labels": 5, "hidden_dropout_prob": 0.0, **_TOKENS}
_BERT |= {"attention_probs_dropout_prob": 0.0}
_GPT2 = {"n_embd": 22, "n_layer": 2, "n_head": 2, "n_inner": 31, "n_positions": 17, **_TOKENS, "num_labels": 5}
_GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_DISTILBERT = {"dim": 22, "n_layers": 2, "n_heads": 2, "hidden_dim": 31, "max_position_embeddings": 17, **_TOKENS}
_DISTILBERT |= {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0, "num_labels": 5}
_OPT = {"hidden_size": 22, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 31, **_TOKENS}
_OPT |= {"max_position_embeddings": 17, "dropout": 0.0}
_LLAMA = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
_LLAMA |= {"intermediate_size": 31, "max_position_embeddings": 37, **_TOKENS, "num_labels": 5, "sliding_window": None}
_WIDE = {**_LLAMA, "head_dim": 10}
_SCALED = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_SCALED |= {"original_max_position_embeddings": 9}
_YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 9}

# Class and configuration.
SOURCES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", _T5),
    "flan-t5": ("T5ForConditionalGeneration", {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5ForConditionalGeneration", {**_T5, "feed_forward_proj": "gated-gelu"}),
    "t5-encoder": ("T5EncoderModel", _T5),
    "t5-model": ("T5Model", _T5),
    "bart": ("BartForConditionalGeneration", _BART),
    "bart-model": ("BartModel", _BART),
    "marian": ("MarianMTModel", {**_BART, "activation_function": "swish", "forced_eos_token_id": None}),
    "gpt2": ("GPT2LMHeadModel", _GPT2),
    "gpt2-classifier": ("GPT2ForSequenceClassification", _GPT2),
    "bert": ("BertForMaskedLM", {**_BERT, "tie_word_embeddings": False}),
    "bert-classifier": ("BertForSequenceClassification", _BERT),
    "bert-tagger": ("BertForTokenClassification", _BERT),
    "bert-model": ("BertModel", _BERT),
    "roberta": ("RobertaForMaskedLM", {**_BERT, "type_vocab_size": 1}),
    "roberta-classifier": ("RobertaForSequenceClassification", {**_BERT, "type_vocab_size": 1}),
    "distilbert": ("DistilBertForMaskedLM", _DISTILBERT),
    "distilbert-classifier": ("DistilBertForSequenceClassification", _DISTILBERT),
    "mbart": ("MBartForConditionalGeneration", {**_BART, "forced_eos_token_id": None}),
    "pegasus": ("PegasusForConditionalGeneration", {**_BART, "activation_function": "relu"}),
    "opt": ("OPTForCausalLM", _OPT),
    "opt-classifier": ("OPTForSequenceClassification", {**_OPT, "num_labels": 5}),
    "xlm-r": ("XLMRobertaForMaskedLM", {**_BERT, "type_vocab_size": 1}),
    "llama": ("LlamaForCausalLM", {**_LLAMA, "rope_parameters": _SCALED}),
    "llama-biases": ("LlamaForCausalLM", {**_LLAMA, "attention_bias": True, "tie_word_embeddings": True}),
    "llama-model": ("LlamaModel", {**_WIDE, "rope_parameters": {**_SCALED, "rope_type": "linear"}}),
    "mistral": ("MistralForCausalLM", {**_WIDE, "num_key_value_heads": 1}),
    "qwen2": ("Qwen2ForCausalLM", {**_LLAMA, "rope_parameters": _YARN}),
    "qwen2-tagger": ("Qwen2ForTokenClassification", _LLAMA),
    "qwen3": ("Qwen3ForCausalLM", _WIDE),
    "qwen3-classifier": ("Qwen3ForSequenceClassification", _WIDE),
}


def make_source(name: str, **fields: Any) -> PreTrainedModel:
    """A model by its name in `SOURCES`, in evaluation mode."""
    kind = getattr(transformers, SOURCES[name][0])
    model: PreTrainedModel = kind(kind.config_class(**SOURCES[name][1] | fields))
    torch.manual_seed(0)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Those of Marian are sinusoids.
            if parameter.requires_grad:
                nn.init.normal_(parameter, mean=float("norm" in key.lower() and "weight" in key), std=0.2)
        for key, buffer in model.named_buffers():
            if "bias" in key:
                nn.init.normal_(buffer)
    return model.eval()


@pytest.fixture(scope="session")
def sources() -> Callable[[str], PreTrainedModel]:
    """`make_source` without fields, each model made once."""
    return functools.cache(make_source)
