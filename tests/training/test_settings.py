"""Presets and overrides."""

from typing import Any, cast

import pytest

from synthetic_attention.tasks import UserError
from synthetic_attention.training.settings import (
    Settings,
    TrainingArguments,
    build_config,
    known_presets,
    read_settings,
)


def read(*overrides: str, synthesizer: str = "random+vanilla", preset: str = "tiny", seed: int = 1) -> Settings:
    return read_settings(synthesizer=synthesizer, preset=preset, seed=seed, overrides=overrides)


def test_tiny_is_what_it_is_said_to_be() -> None:
    config = build_config(read())
    assert (config.num_layers, config.num_decoder_layers, config.d_model, config.d_ff) == (4, 4, 128, 256)
    assert (config.num_heads, config.label_smoothing, config.vocab_size) == (4, 0.1, 6000)
    assert known_presets() == ["base", "demo", "small", "t5-base", "t5-small", "t5-tiny", "tiny"]


def test_small_and_base_are_what_they_are_said_to_be() -> None:
    small, base = (read(preset=name) for name in ("small", "base"))
    config = build_config(small)
    assert (config.num_layers, config.num_decoder_layers, config.d_model) == (3, 3, 256)
    config, training = build_config(base), base.training
    # Transformer base as published.
    assert (config.num_layers, config.num_decoder_layers, config.d_model, config.d_ff) == (6, 6, 512, 2048)
    assert (config.num_heads, config.vocab_size, config.dropout_rate, config.label_smoothing) == (8, 32000, 0.1, 0.1)
    assert (training.warmup_steps, training.beta1, training.beta2, training.epsilon) == (4000, 0.9, 0.98, 1e-9)
    assert training.learning_rate == pytest.approx((512 * 4000) ** -0.5, rel=2e-3)
    assert training.batch_tokens * training.gradient_accumulation_steps == 50000
    assert training.average_checkpoints == 5


def test_overrides_reach_model_training_and_functions() -> None:
    settings = read("d_model=64", "learning_rate=1e-4", "random.std=0.5", "mixture.gate=sigmoid")
    config = build_config(settings)
    assert config.d_model == 64
    assert settings.training.learning_rate == 1e-4
    assert config.synthesizer_options == {"random": {"std": 0.5}, "mixture": {"gate": "sigmoid"}}


def test_synthesizers_may_be_given_per_layer_and_side() -> None:
    config = build_config(read(synthesizer="{encoder: [dense, random, random, vanilla], decoder: vanilla}"))
    assert config.synthesizers("encoder") == ["dense", "random", "random", "vanilla"]
    assert config.synthesizers("decoder") == ["vanilla"] * 4


def test_settings_survive_the_file() -> None:
    settings = read("random.std=0.5", synthesizer="{encoder: dense, decoder: random}")
    assert Settings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("nonsense=1", r"unknown setting 'nonsense'.*batch_tokens.*d_model"),
        ("randm.std=1", r"unknown function 'randm' in 'randm.std'; expected one of: .*random"),
        ("random.size=1", r"size.*std"),
        ("d_model", r"got --set 'd_model'; expected key=value"),
        ("d_model=[", r"expected a value as YAML"),
        ("d_model=wide", r"d_model"),
        ("d_model=-1", r"d_model"),
        ("dropout_rate=2", r"dropout_rate=2"),
        ("batch_tokens=many", r"batch_tokens='many'; expected int"),
        ("batch_tokens=0", r"batch_tokens=0; expected more than 0"),
        ("beta1=1.0", r"beta1=1.0; expected 0 or more, less than 1"),
        ("dtype=float16", r"dtype='float16'; expected one of: float32, bfloat16"),
        ("average_checkpoints=0", r"average_checkpoints=0; expected more than 0"),
        ("compile=1", r"compile=1; expected bool"),
        ("long_sentences=skip", r"long_sentences='skip'; expected one of: error, drop, truncate"),
        ("steps=null", r"neither steps nor minutes"),
        ("synthesizer=dense", r"use --synthesizer"),
        ("synthesizer_options=3", r"synthesizer_options"),
        ("pad_token_id=7", r"unknown setting 'pad_token_id'"),
        ("minutes=1:30", r"minutes='1:30'; expected float"),
        ("learning_rate=nan", r"learning_rate=nan; expected a finite number"),
        ("weight_decay=.inf", r"weight_decay=inf; expected a finite number"),
        ("layer_norm_epsilon=.nan", r"layer_norm_epsilon=nan; expected a finite number"),
        ("max_position_embeddings=1", r"max_position_embeddings=1; expected at least 2"),
    ],
)
def test_what_cannot_be_set_is_said_on_one_line(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(override)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("synthesizer", "message"),
    [
        ("randm", r"unknown synthesizer 'randm'.*factorized_dense"),
        ("random+", r"unknown synthesizer"),
        ("[random]", r"1 synthesizers? for the 4 layers"),
        ("{encoder: random}", r"exactly 'encoder' and 'decoder'"),
    ],
)
def test_unknown_synthesizers_list_the_known(synthesizer: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(synthesizer=synthesizer)


def test_unknown_presets_list_the_known() -> None:
    with pytest.raises(
        UserError, match="unknown preset 'huge'; expected one of: base, demo, small, t5-base, t5-small, t5-tiny, tiny"
    ):
        read(preset="huge")


def test_seeds_are_32_bits() -> None:
    with pytest.raises(UserError, match="got seed -1"):
        read(seed=-1)


@pytest.mark.parametrize("options", ["3", "{random: 3}"])
def test_options_of_functions_are_checked_before_they_are_added_to(options: str) -> None:
    with pytest.raises(UserError, match="expected options by function"):
        read(f"synthesizer_options={options}", "random.std=1")
    settings = read("synthesizer_options={random: {std: 0.5}}", "mixture.gate=sum")
    assert settings.synthesizer_options == {"random": {"std": 0.5}, "mixture": {"gate": "sum"}}


def test_whatever_end_is_given_replaces_the_presets() -> None:
    def end(*overrides: str, **budget: float) -> tuple[int | None, float | None]:
        training = read_settings(
            synthesizer="random", preset="tiny", seed=1, overrides=overrides, **cast(Any, budget)
        ).training
        return training.steps, training.minutes

    assert end() == (5000, None)
    assert end("minutes=5") == end(minutes=5) == (None, 5.0)
    assert end("steps=100") == end(steps=100) == (100, None)
    assert end("steps=100", minutes=1) == end("minutes=1", steps=100) == end(steps=100, minutes=1) == (100, 1.0)
    with pytest.raises(UserError, match=r"got both --steps and --set steps=…; give one of them"):
        end("steps=100", steps=50)
    with pytest.raises(UserError, match=r"got both --drop-long and --set long_sentences=…; give one of them"):
        read_settings(synthesizer="random", preset="tiny", seed=1, overrides=["long_sentences=truncate"], long="drop")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"steps": 1, "speed": 2}}, "speed"),
        ({"training": None}, "settings that cannot be read"),
        ({"colour": 1}, "colour"),
        ({"seed": None}, "got seed None"),
        ({"model": None}, "got model=None"),
    ],
)
def test_settings_that_are_none_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Settings.from_dict({**read().to_dict(), **change})


def test_a_budget_replaces_the_presets() -> None:
    training = read().with_budget(None, 1.5).training
    assert (training.steps, training.minutes) == (None, 1.5)
    with pytest.raises(UserError, match=r"minutes=-1\.0; expected more than 0"):
        read().with_budget(None, -1.0)


def test_integers_are_numbers_too() -> None:
    assert TrainingArguments(minutes=3, weight_decay=1).minutes == 3.0
