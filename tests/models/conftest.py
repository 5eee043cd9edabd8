"""Tiny models and a padded batch; every axis has a size of its own, so that none can be taken for another."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from synthetic_attention.models import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerForMaskedLM,
    SynthesizerForSequenceClassification,
    SynthesizerForTokenClassification,
    SynthesizerPreTrainedModel,
)
from synthetic_attention.synthesizers import known

VOCABULARY, LONGEST = 53, 19
SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 22,
    "num_heads": 2,
    "d_ff": 31,
    "num_layers": 2,
    "max_position_embeddings": LONGEST,
    # Untied, so that an untrained model does not merely repeat its input.
    "tie_word_embeddings": False,
}
# Layers of every function, mixtures and groups of all forms of logits, the causal baselines.
FUNCTIONS = known(layers=False)
MIXTURES = [
    "random+vanilla",
    "dense+vanilla",
    "random+dense",
    "factorized_random+factorized_dense",
    "factorized_dense+random+vanilla",
    # Groups of heads.
    "random/vanilla",
    "dense+random:1/factorized_random:1",
]
WINDOWS = ["lightweight_conv", "dynamic_conv", "local_dense"]
STACKS: dict[str, dict[str, Any]] = {
    name: {"synthesizer": layers, "num_layers": len(layers)}
    for name, layers in {"functions": FUNCTIONS, "mixtures": MIXTURES, "windows": WINDOWS}.items()
}  # Rotary positions, and heads that share keys and values.
STACKS["rotary"] = {
    "synthesizer": ["vanilla", "random+vanilla", "dense/vanilla", "random"],
    **{"num_layers": 4, "num_heads": 4, "num_key_value_heads": 2, "d_kv": 6, "qk_norm": True},
    "position_embedding_type": "rotary",
}
HEADS = {
    "seq2seq": SynthesizerForConditionalGeneration,
    "causal": SynthesizerForCausalLM,
    "classifier": SynthesizerForSequenceClassification,
    "masked": SynthesizerForMaskedLM,
    "tagger": SynthesizerForTokenClassification,
}


def word_tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    """A tokenizer whose token n is the word wn."""
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", **options)


@pytest.fixture
def tiny_config() -> Callable[..., SynthesizerConfig]:
    def make(**fields: Any) -> SynthesizerConfig:
        # Rotary positions need an even width of heads.
        width = {"d_kv": 6} if fields.get("position_embedding_type") == "rotary" else {}
        return SynthesizerConfig(**{**SIZES, **width, **fields})

    return make


@pytest.fixture
def build(tiny_config: Callable[..., SynthesizerConfig]) -> Callable[..., SynthesizerPreTrainedModel]:
    """Build the model with a head, in eval mode."""

    def make(head: str, **fields: Any) -> SynthesizerPreTrainedModel:
        model = HEADS[head](tiny_config(**fields)).eval()
        # Relative biases and R start almost uniform: draw them again, so that they matter.
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name or name.endswith("table"):
                torch.nn.init.normal_(parameter)
        return model

    return make


@pytest.fixture
def tiny(build: Callable) -> Callable[..., SynthesizerForConditionalGeneration]:
    return lambda **fields: build("seq2seq", **fields)


@pytest.fixture
def tiny_lm(build: Callable) -> Callable[..., SynthesizerForCausalLM]:
    return lambda **fields: build("causal", **fields)


@pytest.fixture
def tiny_classifier(build: Callable) -> Callable[..., SynthesizerForSequenceClassification]:
    return lambda **fields: build("classifier", **{"num_labels": 5, **fields})


@pytest.fixture
def rows() -> tuple[Tensor, Tensor]:
    """Four rows of seven slots: full, padded on the left, on the right, with holes; and their mask."""
    ids, mask = torch.randint(3, VOCABULARY, (4, 7)), torch.ones(4, 7, dtype=torch.long)
    mask[1, :3] = 0
    mask[2, 5:] = 0
    mask[3, [1, 4]] = 0
    return ids.masked_fill(mask == 0, 0), mask
