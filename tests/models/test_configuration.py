"""The configuration: fields, refusals, and what transformers reads off it."""

from pathlib import Path

import numpy as np
import pytest
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig

from synthetic_attention.models import SynthesizerConfig

SIDES = {"encoder": "dense", "decoder": ["random", "random+vanilla", "vanilla"]}


def test_the_defaults_are_the_papers_base_size() -> None:
    config = SynthesizerConfig()
    assert (config.d_model, config.d_ff, config.num_heads, config.d_kv) == (512, 2048, 8, 64)
    assert config.num_layers == config.num_decoder_layers == 6
    assert config.synthesizers("encoder") == ["random+vanilla"] * 6
    assert config.decoder_start_token_id == config.bos_token_id


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"num_laiers": 3}, ["num_laiers", "num_layers"]),
        ({"max_length": 64}, ["max_length", "max_position_embeddings"]),
        ({"synthesizer": "rnd"}, ["rnd", "factorized_random"]),
        ({"synthesizer_options": {"random": {"sd": 1}}}, ["sd", "std"]),
        ({"synthesizer": ["dense"]}, ["['dense']", "encoder's 6 layers"]),
        ({"synthesizer": {"encoder": "dense"}}, ["'encoder' and 'decoder'"]),
        ({"d_model": 100, "num_heads": 7}, ["d_model=100", "num_heads=7"]),
        ({"dropout_rate": 1.0}, ["dropout_rate=1.0"]),
        ({"initializer_factor": float("inf")}, ["initializer_factor=inf"]),
        ({"num_decoder_layers": 0}, ["num_decoder_layers=0"]),
        ({"feed_forward_proj": "gated-foo"}, ["foo", "relu"]),
        ({"relative_attention_max_distance": 16}, ["relative_attention_max_distance=16", "32"]),
        ({"synthesizer": ["dense"] * 5 + ["random:9/vanilla"]}, ["random:9/vanilla", "8 heads"]),
        ({"problem_type": "classes"}, ["'classes'", "regression"]),
        ({"norm_type": "batch_norm"}, ["batch_norm", "rms_norm"]),
        # The default tokens are 0, 1 and 2.
        ({"vocab_size": 1}, ["bos_token_id=1", "vocab_size=1"]),
        ({"is_encoder_decoder": False, "num_decoder_layers": 3}, ["num_layers=6", "num_decoder_layers=3"]),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], facts: list[str]) -> None:
    # transformers 5.17 checks this field itself.
    kinds = (ValueError, StrictDataclassFieldValidationError) if "problem_type" in fields else ValueError
    with pytest.raises(kinds, match=r"\S") as error:
        SynthesizerConfig(**fields)
    assert all(fact in str(error.value) for fact in facts), error.value


@pytest.mark.parametrize("fields", [{"d_model": "512"}, {"num_layers": True}, {"max_position_embeddings": None}])
def test_types_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(StrictDataclassFieldValidationError, match=next(iter(fields))):
        SynthesizerConfig(**fields)


def test_other_names_of_a_field_are_read_first() -> None:
    config = SynthesizerConfig(hidden_size=24, num_attention_heads=3, num_hidden_layers=2)
    assert (config.d_model, config.d_kv, config.num_decoder_layers) == (24, 8, 2)
    with pytest.raises(StrictDataclassFieldValidationError, match="d_model"):
        SynthesizerConfig(hidden_size="24")


def test_labels_can_be_of_numpy() -> None:
    names = dict(enumerate(np.unique(["b", "a"])))
    config = SynthesizerConfig(id2label=names, label2id={name: number for number, name in names.items()})
    assert SynthesizerConfig.from_dict(config.to_dict()).id2label == {0: "a", 1: "b"}
    assert SynthesizerConfig(num_labels=np.int64(4)).num_labels == 4


def test_a_configuration_can_be_made_from_all_its_fields() -> None:
    config = SynthesizerConfig(num_labels=3, synthesizer=SIDES, num_layers=2, num_decoder_layers=3)
    assert SynthesizerConfig(**config.to_dict()).to_dict() == config.to_dict()


def test_a_checkpoint_names_the_task_of_its_pipeline_beside_those_of_users(tmp_path: Path) -> None:
    mine, ours = {"impl": "mine.Mine", "pt": ["AutoModelForCausalLM"]}, "synthesizer-text-generation"
    config = SynthesizerConfig(architectures=["SynthesizerForCausalLM"])
    config.custom_pipelines = {"mine": mine}
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert again.custom_pipelines.keys() == {"mine", ours}
    assert again.custom_pipelines["mine"] == mine
    assert SynthesizerConfig(**again.to_dict()).custom_pipelines == again.custom_pipelines
    again.architectures = ["SynthesizerForMaskedLM"]
    assert again.to_dict()["custom_pipelines"].keys() == {"mine", "synthesizer-fill-mask"}
    again.architectures = ["SynthesizerForConditionalGeneration"]
    assert again.to_dict()["custom_pipelines"].keys() == {"mine"}


def test_a_cache_is_built_for_the_decoder() -> None:
    config = SynthesizerConfig(num_layers=2, num_decoder_layers=3, synthesizer=SIDES)
    assert config.synthesizers("encoder") == ["dense", "dense"]
    decoder = config.get_text_config(decoder=True)
    assert decoder.num_hidden_layers == 3
    assert decoder.layer_types == ["synthesizer_keys_0", "full_attention", "full_attention"]
    groups = SynthesizerConfig(num_layers=2, synthesizer=["random:6/vanilla:2", "dense+vanilla/vanilla"])
    assert (groups.layer_types, groups.key_heads) == (["synthesizer_keys_2", "full_attention"], [2, 8])
    assert decoder.decoder_start_token_id == config.decoder_start_token_id
    assert config.num_layers == 2


@pytest.mark.parametrize("field", ["num_layers", "num_hidden_layers"])
def test_one_stack_gets_another_number_of_layers(field: str, tmp_path: Path) -> None:
    SynthesizerConfig(num_layers=2, is_encoder_decoder=False, synthesizer="random").save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, **{field: 3})
    assert (config.num_layers, config.num_decoder_layers) == (3, 3)


def test_a_saved_configuration_comes_back(tmp_path: Path) -> None:
    options = {"synthesizer_options": {"factorized_dense": {"a": 4}}, "num_labels": 3, "attn_implementation": "eager"}
    config = SynthesizerConfig(num_layers=2, num_decoder_layers=3, synthesizer=SIDES, hidden_size=64, **options)
    assert (config.d_model, config.num_labels) == (64, 3)
    # With a field of a newer version.
    config = SynthesizerConfig.from_dict({**config.to_dict(), "sparkle": 7})
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, SynthesizerConfig)
    assert again.sparkle == 7
    assert AutoConfig.from_pretrained(tmp_path, num_heads=4).num_heads == 4
    with pytest.raises(ValueError, match="classifier_pooling='max'"):
        AutoConfig.from_pretrained(tmp_path, classifier_pooling="max")
    assert {**again.to_dict(), "_name_or_path": ""} == {**config.to_dict(), "_name_or_path": ""}
