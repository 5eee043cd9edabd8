"""Presets and overrides."""

from typing import Any

import pytest

from synthesizer_lab.tasks import UserError
from synthesizer_lab.training.settings import Settings, build_config, known_presets, list_settings, read_settings


def read(*overrides: str, synthesizer: str = "random+vanilla", preset: str = "tiny", seed: int = 1) -> Settings:
    return read_settings(synthesizer=synthesizer, preset=preset, seed=seed, overrides=overrides)


@pytest.mark.parametrize("preset", known_presets())
def test_presets_can_be_read(preset: str) -> None:
    settings = read(preset=preset)
    assert Settings.from_dict(settings.to_dict()) == settings


def test_base_is_the_transformer_base_as_published() -> None:
    config, training = build_config(read(preset="base")), read(preset="base").training
    assert (config.num_layers, config.num_decoder_layers, config.d_model, config.d_ff) == (6, 6, 512, 2048)
    assert (config.num_heads, config.vocab_size, config.dropout_rate) == (8, 32000, 0.1)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.warmup_steps, training.label_smoothing_factor) == (4000, 0.1)
    assert training.learning_rate == pytest.approx((512 * 4000) ** -0.5, rel=2e-3)
    assert training.batch_tokens * training.gradient_accumulation_steps == 50000


def test_every_setting_has_a_meaning() -> None:
    settings = list_settings()
    assert {entry.group.split()[0] for entry in settings} == {"training", "model", "function", "task"}
    assert [(entry.key, entry.value) for entry in settings if entry.key == "random.std"] == [("random.std", 0.003)]
    assert not [entry.key for entry in settings if not entry.meaning]


def test_synthesizers_may_be_given_per_layer_and_side() -> None:
    config = build_config(read(synthesizer="{encoder: [dense, random, random, vanilla], decoder: vanilla}"))
    assert config.synthesizers("encoder") == ["dense", "random", "random", "vanilla"]
    assert config.synthesizers("decoder") == ["vanilla"] * 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("nonsense=1", r"unknown setting 'nonsense'"),
        ("randm.std=1", r"unknown setting 'randm.std'; did you mean 'random.std'"),
        ("d_model", r"got --set 'd_model'; expected key=value"),
        ("d_model=[", r"expected a YAML value"),
        ("d_model=wide", r"^got d_model='wide'; expected int$"),
        ("dropout_rate=2", r"dropout_rate=2"),
        ("adam_beta1=1.0", r"adam_beta1=1.0; expected less than 1"),
        ("sharding=fsdp optim=adafactor", "optim=adafactor with sharding fsdp"),
        ("optim=lion", r"optim='lion'; expected one of: .*adafactor"),
        ("max_steps=-1", r"neither max_steps nor minutes"),
        ("synthesizer=dense", r"use --synthesizer"),
        ("learning_rate=nan", r"learning_rate=nan; expected a finite number"),
        ("max_position_embeddings=1", r"max_position_embeddings=1; expected at least 2"),
    ],
)
def test_what_cannot_be_set_is_said_on_one_line(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(*override.split())
    assert "\n" not in str(caught.value)


def test_whatever_end_is_given_replaces_the_presets() -> None:
    def end(*overrides: str, **budget: Any) -> tuple[int | None, float | None]:
        training = read_settings(synthesizer="random", preset="tiny", overrides=overrides, **budget).training
        return training.max_steps, training.minutes

    assert end() == (5000, None)
    assert end("minutes=5") == end(minutes=5) == (-1, 5.0)
    assert end("max_steps=100") == end(max_steps=100) == (100, None)
    assert end("max_steps=100", minutes=1) == end(max_steps=100, minutes=1) == (100, 1.0)
    with pytest.raises(UserError, match="max_steps"):
        end("max_steps=100", max_steps=50)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"max_steps": 1, "speed": 2}}, "speed"),
        ({"colour": 1}, "colour"),
        ({"training": {"max_steps": 1, "seed": None}}, "got seed=None"),
        ({"model": None}, "got model=None"),
    ],
)
def test_settings_that_are_none_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, TypeError), match=message):
        Settings.from_dict({**read().to_dict(), **change})
