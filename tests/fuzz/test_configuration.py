"""Random values of every field: a configuration is refused with the name of a field, or its model works."""

import inspect
import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given
from hypothesis import strategies as st

from fuzz.harness import fuzzed
from synthetic_attention import SynthesizerAttention, SynthesizerMultiheadAttention, models
from synthetic_attention.models import SynthesizerConfig
from synthetic_attention.synthesizers import OPTIONS, known

REFUSED = (ValueError, StrictDataclassError)
TINY = {"vocab_size": 11, "d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 1, "max_position_embeddings": 8}
# Ours; those of the base class are transformers' to check.
OWN = [field.name for field in fields(SynthesizerConfig) if field.name in SynthesizerConfig.__annotations__]
FIELDS = [*OWN, "head_dim", "hidden_size", "num_hidden_layers", "layer_types", "per_layer_config", "to_dict"]
HEADS = [getattr(models, name) for name in models.__all__ if name.startswith("SynthesizerFor")]
# Values that JSON has, larger than any size but small enough to build a model where they are valid.
_NUMBERS = [0, 1, 2, 3, 4, 8, 16, -1, 2.5, 0.3, -0.5, 10**20, 10**400, 1e308]
_TEXTS = ["", "x", "8", "relu", "gated-gelu", "learned", "relative", "rms_norm", "first", "eager", "float16", "float64"]
PLAIN = st.sampled_from([None, True, False, *_NUMBERS, *_TEXTS, [], [1], ["x"], {}, {"a": 1}, {"0": "x"}])
# Values that only a caller in Python can give.
ODD = PLAIN | st.sampled_from([float("nan"), float("inf"), np.int64(4), np.float32(0.5), torch.tensor(3), (1,), b"x"])
NAMES = st.lists(st.sampled_from(known()), min_size=1, max_size=3).map("+".join)


def values(odd: st.SearchStrategy[Any], **own: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A few names of `own` or FIELDS with their values."""
    options = st.sampled_from(sorted(OPTIONS)).flatmap(lambda name: _options(name, odd))
    likely = {"synthesizer": NAMES | odd, "synthesizer_options": options | odd}
    names = st.lists(st.sampled_from(sorted(own) or FIELDS), min_size=1, max_size=3, unique=True)
    return names.flatmap(lambda names: st.fixed_dictionaries({name: likely.get(name, odd) for name in names}))


def _options(name: str, odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    known = st.sampled_from([*(field.name for field in fields(OPTIONS[name])), "x"])
    return st.dictionaries(known, odd, max_size=2).map(lambda options: {name: options})


def assert_names(error: Exception, given: Iterable[str]) -> None:
    """The message names one of the fields that were given, by any of its names, or the function of an option."""
    aliases = {"embed_dim": "d_model", **SynthesizerConfig.attribute_map}
    names = {*given, *(aliases.get(name, name) for name in given), *OPTIONS, "synthesizer"}
    assert any(name in str(error) for name in names), error


@fuzzed(400, 7000)
@given(values(ODD), st.sampled_from(HEADS))
def test_a_configuration_is_refused_or_its_model_works(changes: dict[str, Any], head: Any) -> None:
    try:
        config = SynthesizerConfig(**{**TINY, **changes})
    except REFUSED as error:
        assert_names(error, changes)
        return
    assert SynthesizerConfig.from_dict(json.loads(config.to_json_string())).to_dict() == config.to_dict()
    try:
        model = head(config).eval()
    except REFUSED as error:
        assert_names(error, [*changes, "is_encoder_decoder", "is_decoder"])
        return
    ids = torch.tensor([[0, 1, 2], [2, 1, 0]]).clamp_max(config.vocab_size - 1)
    longest = min(3, config.max_position_embeddings)
    extra = {"decoder_input_ids": ids[:, :longest]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        assert model(input_ids=ids[:, :longest], **extra, return_dict=True).logits.isfinite().all()


@fuzzed(200, 1000)
@given(values(PLAIN))
def test_a_file_is_refused_or_read(changes: dict[str, Any]) -> None:
    written = json.loads(json.dumps({**SynthesizerConfig(**TINY).to_dict(), **changes}))
    try:
        config = SynthesizerConfig.from_dict(written)
    except REFUSED as error:
        assert_names(error, changes)
        return
    # Not changed by reading, but for keys of labels and derived fields.
    for name in changes.keys() & {"d_model", "dropout_rate", "norm_type", "synthesizer"}:
        assert getattr(config, name) == written[name]


@pytest.mark.parametrize("layer", [SynthesizerAttention, SynthesizerMultiheadAttention])
@fuzzed(100, 1000)
@given(data=st.data())
def test_a_layer_is_refused_or_works(layer: Any, data: st.DataObject) -> None:
    # Devices and dtypes are PyTorch's to check.
    names = inspect.signature(layer).parameters.keys() - {"device", "dtype"}
    changes = data.draw(values(ODD, **dict.fromkeys(names, ODD)))
    sizes = {next(iter(inspect.signature(layer).parameters)): 8, "num_heads": 2, "max_length": 8}
    try:
        module = layer(**{**sizes, **changes})
    except ValueError as error:
        assert_names(error, changes)
        return
    attention = module if layer is SynthesizerAttention else module.attention
    length = min(3, attention.max_length or 3)
    x = torch.zeros(length, length, attention.d_model)
    y = module(x) if layer is SynthesizerAttention else module(x, x, x)[0]
    assert y.isfinite().all()
