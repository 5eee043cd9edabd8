"""What attention depends on, on tiny models whose heads attend in known ways."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conversion.test_calibrate import batches
from models.conftest import build, tiny_config
from synthesizer_lab.attention.layers import attention_layers, mean_loss
from synthesizer_lab.inspect.explain import explain
from synthetic_attention.models import SynthesizerPreTrainedModel

__all__ = ["build", "tiny_config"]
Build = Callable[..., SynthesizerPreTrainedModel]
SIZES = {"num_heads": 3, "d_model": 18, "num_layers": 2, "dropout_rate": 0.0}


@pytest.mark.parametrize("head", ["causal", "seq2seq"])
def test_heads_of_pure_functions(build: Build, head: str) -> None:
    model, text = build(head, **SIZES, synthesizer="random:2/dense:1"), batches(head == "seq2seq", 8)
    found = explain(model, text)
    for heads in (entry["heads"] for entry in found["explained"]):
        assert min(each["explained_by_random"] for each in heads[:2]) > 0.99
        # Its hidden features are drawn, not those of the model: they explain a part.
        assert heads[2]["explained_by_random"] < heads[0]["explained_by_random"]
        assert max(each["explained_by_dense"] for each in heads) <= 1
    first, second = found["removed"][:2]
    assert (first["function"], second["function"]) == ("random of heads 1-2", "dense of head 3")
    layer: Any = attention_layers(model)[0].module
    for entry, function in zip((first, second), layer.function.components, strict=True):
        before = copy.deepcopy(function.state_dict())
        with torch.no_grad():
            function.zero_logits()
        assert entry["loss_increase"] == pytest.approx(mean_loss(model, text) - found["loss"], abs=1e-5)
        assert abs(entry["loss_increase"]) > 1e-5
        function.load_state_dict(before)


def test_the_loss_without_a_function(build: Build) -> None:
    model = build("causal", **SIZES, synthesizer="random+vanilla")
    text, before = batches(count=2), copy.deepcopy(model.state_dict())
    loss = mean_loss(model, text)
    found = explain(model, text)
    assert found["loss"] == loss
    places = [(1, "random"), (1, "vanilla"), (2, "random"), (2, "vanilla"), (None, "random"), (None, "vanilla")]
    removed = [(each["stack"], each["layer"], each["function"]) for each in found["removed"]]
    assert removed == [("decoder", *place) for place in places]
    assert mean_loss(model, text) == loss
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())

    increases = [each["loss_increase"] for each in found["removed"]]
    assert all(abs(increase) > 1e-5 for increase in increases)
    for layer, number in ((0, 0), (1, 4)):
        attention: Any = attention_layers(model)[layer].module
        torch.nn.init.zeros_(attention.function.components[0].table)
        assert increases[number] == pytest.approx(mean_loss(model, text) - loss, abs=1e-5)
