"""The configuration: fields, refusals, and what transformers reads off it."""

import pytest
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
    ("fields", "message"),
    [
        ({"num_laiers": 3}, r"unknown field\(s\) num_laiers.*num_layers"),
        ({"max_length": 64}, "the longest sequence is max_position_embeddings"),
        ({"synthesizer": "rnd"}, "unknown synthesizer 'rnd'.*factorized_random"),
        ({"synthesizer_options": {"random": {"sd": 1}}}, "unknown option 'sd'.*std"),
        ({"synthesizer": ["dense"]}, "list of 1 synthesizers for the 6 layers of the encoder"),
        ({"synthesizer": {"encoder": "dense"}}, "exactly 'encoder' and 'decoder'"),
        ({"d_model": 100, "num_heads": 7}, "multiple of num_heads"),
        ({"dropout_rate": 1.0}, "0 ≤ dropout_rate < 1"),
        ({"num_decoder_layers": 0}, "at least 1"),
        ({"position_embedding_type": "rotary"}, "sinusoidal, learned, relative"),
        ({"norm_type": "batch_norm"}, "layer_norm, rms_norm"),
        ({"feed_forward_proj": "gated-foo"}, "feed_forward_proj='foo'.*relu"),
        ({"relative_attention_max_distance": 16}, "relative_attention_max_distance=16 with 32 buckets"),
        ({"synthesizer": {"encoder": 3, "decoder": "dense"}}, "synthesizer 3 for the encoder"),
        (
            {"synthesizer": "random+dense+vanilla", "synthesizer_options": {"mixture": {"gate": "sigmoid"}}},
            "sigmoid.*3 components",
        ),
        (
            {"synthesizer": "factorized_dense", "synthesizer_options": {"factorized_dense": {"a": 2, "b": 2}}},
            "a·b of at least the maximum length 256",
        ),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SynthesizerConfig(**fields)


def test_one_synthesizer_for_each_layer_of_each_side() -> None:
    config = SynthesizerConfig(num_layers=2, num_decoder_layers=3, synthesizer=SIDES)
    assert config.synthesizers("encoder") == ["dense", "dense"]
    assert config.synthesizers("decoder") == SIDES["decoder"]


def test_a_cache_is_built_for_the_decoder() -> None:
    config = SynthesizerConfig(num_layers=2, num_decoder_layers=3, synthesizer=SIDES)
    decoder = config.get_text_config(decoder=True)
    assert decoder.num_hidden_layers == 3
    assert decoder.layer_types == ["synthesizer_values", "synthesizer_keys_and_values", "synthesizer_keys_and_values"]
    assert decoder.decoder_start_token_id == config.decoder_start_token_id
    assert config.num_layers == 2


def test_a_saved_configuration_comes_back(tmp_path) -> None:
    options = {"factorized_dense": {"a": 4, "b": 8}}
    config = SynthesizerConfig(
        num_layers=2, num_decoder_layers=3, synthesizer=SIDES, synthesizer_options=options, num_labels=3
    )
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, SynthesizerConfig)
    assert {**again.to_dict(), "_name_or_path": ""} == {**config.to_dict(), "_name_or_path": ""}
