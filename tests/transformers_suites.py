"""transformers' common tests on our models. They run in a clone of its repository: see CONTRIBUTING.md."""

import unittest
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

import synthetic_attention as synthesizers

from .generation.test_utils import GenerationTesterMixin
from .test_configuration_common import ConfigTester
from .test_modeling_common import ModelTesterMixin, ids_tensor

SYNTHESIZERS = ("vanilla", "random", "dense", "random+vanilla")
ENCODERS = ("SequenceClassification", "MaskedLM", "TokenClassification")
# The kinds of model: configuration, and names of the classes without "Synthesizer".
KINDS: dict[str, tuple[dict[str, bool], list[str]]] = {
    "Causal": ({"is_decoder": True}, ["Model", "ForCausalLM"]),
    "Seq2Seq": ({"is_encoder_decoder": True}, ["Model", "ForConditionalGeneration"]),
    "Encoder": ({}, ["Model", *(f"For{task}" for task in ENCODERS)]),
}

# The tests make labels for the classes in this table. The package adds none: lm-eval would take all models for these.
MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES["synthesizer"] = "SynthesizerForConditionalGeneration"

CANNOT_APPLY = {
    **{f"test_model_rope_scaling_from_config_{name}": "not rotary" for name in ("0_linear", "1_dynamic", "2_yarn")},
    "test_model_rope_with_partial_rotation": "not rotary",
    "test_generate_compilation_all_outputs": "attentions have the filled slots of a static cache only",
    "test_custom_4d_attention_mask": "no trees: several tokens of a row at one position",
}


class Inputs:
    """Small configurations and batches, with the attributes that the tests read."""

    batch_size, seq_length, num_labels, is_training = 13, 7, 3, True
    hidden_size, num_hidden_layers, num_attention_heads, vocab_size = 32, 2, 4, 99
    encoder_seq_length = decoder_seq_length = key_length = decoder_key_length = seq_length

    def __init__(self, synthesizer: str, kind: dict[str, bool]) -> None:
        self.synthesizer = synthesizer
        self.kind = {"is_encoder_decoder": False, **kind}

    def get_config(self) -> synthesizers.SynthesizerConfig:
        sizes = {"vocab_size": 99, "d_model": 32, "num_heads": 4, "d_ff": 37, "num_layers": 2}
        tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 64}
        return synthesizers.SynthesizerConfig(synthesizer=self.synthesizer, **sizes, **tokens, **self.kind)

    def prepare_config_and_inputs_for_common(self) -> tuple[synthesizers.SynthesizerConfig, dict[str, torch.Tensor]]:
        sides = ("", "decoder_") if self.kind["is_encoder_decoder"] else ("",)
        ids = [ids_tensor([self.batch_size, self.seq_length], self.vocab_size).clamp(3) for _ in sides]
        inputs = {f"{side}input_ids": value for side, value in zip(sides, ids, strict=True)}
        masks = {f"{side}attention_mask": torch.ones_like(value) for side, value in zip(sides, ids, strict=True)}
        return self.get_config(), {**inputs, **masks}


class Common(ModelTesterMixin):
    def setUp(self) -> None:
        self.model_tester = Inputs(self.synthesizer, self.kind)
        self.config_tester = ConfigTester(self, synthesizers.SynthesizerConfig)

    def test_config(self) -> None:
        self.config_tester.run_common_tests()


class Generation(GenerationTesterMixin):
    def _get_attention_shape(self, batch_size: int, seq_length: int | None, config: Any) -> tuple[tuple[int, ...], ...]:
        """The shapes of cached keys and values. Functions without keys store keys of no head."""
        keys, values = super()._get_attention_shape(batch_size, seq_length, config)
        # Without a length they are those of cross-attention, which is always vanilla.
        return keys if "vanilla" in self.synthesizer or seq_length is None else (keys[0], 0, *keys[2:]), values


for name in SYNTHESIZERS:
    for kind, (options, models) in KINDS.items():
        classes: list[type[PreTrainedModel]] = [getattr(synthesizers, f"Synthesizer{model}") for model in models]
        generates = any(model.can_generate() for model in classes)
        bases = (Common, Generation, unittest.TestCase) if generates else (Common, unittest.TestCase)
        content: dict[str, Any] = {"synthesizer": name, "kind": options, "all_model_classes": tuple(classes)}
        content |= {test: unittest.skip(reason)(lambda self: None) for test, reason in CANNOT_APPLY.items()}
        title = f"{kind}{name.title().replace('+', '')}Test"
        globals()[title] = type(title, bases, {**content, "is_encoder_decoder": kind == "Seq2Seq"})
