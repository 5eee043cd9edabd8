"""docs/settings.md names every setting and preset, with the defaults that they have."""

import re
from dataclasses import fields
from typing import Any, cast

import pytest

from documents import ROOT
from synthetic_attention.baselines import BASELINES
from synthetic_attention.models import SynthesizerConfig
from synthetic_attention.synthesizers.base import REGISTRY
from synthetic_attention.synthesizers.mixture import MixtureOptions
from synthetic_attention.training.settings import TrainingArguments, known_presets, read_settings

PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
# Set by the task, by other options of the command, or for other uses than training.
ELSEWHERE = {"synthesizer", "synthesizer_options", "is_encoder_decoder", "type_vocab_size", "use_cache"}


def rows() -> dict[str, str]:
    """The default of each key of the tables with three columns."""
    found = {}
    for keys, default in re.findall(r"^\| (`[^|]+`) \|([^|]*)\| [^|]+ \|$", PAGE, re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", keys), default.strip().strip("`"))
    return found


def written(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(list(value) if isinstance(value, tuple) else value)


def test_every_setting_is_there_with_its_default() -> None:
    expected: dict[str, Any] = {entry.name: entry.default for entry in fields(TrainingArguments)}
    own = SynthesizerConfig.__annotations__
    for entry in fields(cast(Any, SynthesizerConfig)):
        if entry.name in own and entry.name not in ELSEWHERE and not entry.name.endswith("_token_id"):
            expected[entry.name] = entry.default
    options = {name: function.Options for name, function in {**REGISTRY, **BASELINES}.items()}
    for owner, kind in {**options, "mixture": MixtureOptions}.items():
        expected |= {f"{owner}.{entry.name}": entry.default for entry in fields(kind)}
    assert rows() == {name: written(value) for name, value in expected.items()}


@pytest.mark.parametrize("name", known_presets())
def test_every_preset_is_there_with_its_sizes(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \|.*$", PAGE, re.MULTILINE)
    settings = read_settings(synthesizer="vanilla", preset=name, seed=0)
    model, training = settings.model, settings.training
    if "likewise" not in row:
        tokens = training.batch_tokens * training.gradient_accumulation_steps
        assert f"{training.steps:,} " in row
        assert f"of {tokens:,}" in row
    assert f"| {model['num_layers']}+{model['num_layers']} |" in row
    assert f"| {model['d_model']}, {model['num_heads']}, {model['d_ff']:,} |" in row
    assert f"| {model['vocab_size']:,}, {model['max_position_embeddings']} |" in row
