"""Layer surgery: the weights of a model with vanilla in models with other synthesizers."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.conftest import VOCABULARY, build, rows, tiny_config
from synthetic_attention.conversion.synthesize import stacks_of, synthesize
from synthetic_attention.models import SynthesizerPreTrainedModel

__all__ = ["build", "rows", "tiny_config"]
Build = Callable[..., SynthesizerPreTrainedModel]
SIZES = {"synthesizer": "vanilla", "num_heads": 4, "d_model": 20, "num_layers": 2, "vocab_size": VOCABULARY}


def outputs(model: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
    inputs = {"input_ids": rows[0], "attention_mask": rows[1]}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = rows[0][:, :6]
    with torch.no_grad():
        y = model(**inputs).logits
    return y if model.config.is_encoder_decoder or y.dim() < 3 else y * rows[1][..., None]


def noisy(model: SynthesizerPreTrainedModel) -> SynthesizerPreTrainedModel:
    """The model with biases that are not zeros."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize(
    ("head", "positions"),
    [("seq2seq", "relative"), ("causal", "sinusoidal"), ("masked", "relative"), ("classifier", "learned")],
)
@pytest.mark.parametrize("name", ["vanilla", "random+vanilla", "dense+vanilla", "factorized_random+vanilla:3/vanilla"])
def test_the_same_function(build: Build, rows: tuple[Tensor, Tensor], name: str, head: str, positions: str) -> None:
    model = noisy(build(head, **SIZES, position_embedding_type=positions))
    before = copy.deepcopy(model.state_dict())
    new = synthesize(model, name)
    assert (type(new), new.config.synthesizer, model.config.synthesizer) == (type(model), name, "vanilla")
    torch.testing.assert_close(outputs(new, rows), outputs(model, rows), atol=1e-5, rtol=1e-5)
    assert not new.training
    # Training the new model leaves the given one as it was.
    for parameter in new.parameters():
        nn.init.ones_(parameter)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_heads_in_another_order(build: Build, rows: tuple[Tensor, Tensor]) -> None:
    model = noisy(build("seq2seq", **SIZES))
    orders = {"encoder": [[2, 0, 1, 3], [3, 2, 1, 0]], "decoder": [[1, 0, 3, 2], [0, 1, 2, 3]]}
    want = outputs(model, rows)
    torch.testing.assert_close(outputs(synthesize(model, "vanilla", orders), rows), want, atol=1e-5, rtol=1e-5)
    # Head 2 of layer 1 becomes random. Alone among four heads, it comes first.
    sides = {"encoder": ["random:1/vanilla:3", "vanilla"], "decoder": "vanilla"}
    new = synthesize(model, sides, {"encoder": orders["encoder"], "decoder": [[0, 1, 2, 3]] * 2})
    # Without the values of this head both compute the same.
    for each, replaced in ((model, 2), (new, 0)):
        layer: Any = stacks_of(each)[0].layers[0].self_attn
        for tensor in (layer.v_proj.weight, layer.v_proj.bias):
            nn.init.zeros_(tensor.unflatten(0, (4, 5))[replaced])
    torch.testing.assert_close(outputs(new, rows), outputs(model, rows), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(want, outputs(model, rows), atol=1e-3)


def test_pure_functions_keep_values_and_output(build: Build) -> None:
    model = build("causal", **SIZES)
    new = synthesize(model, "factorized_random", synthesizer_options={"factorized_random": {"rank": 3}})
    (old,), (stack,) = stacks_of(model), stacks_of(new)
    layer: Any = stack.layers[1]
    assert layer.self_attn.function.row_factor.shape[-1] == 3
    for name in ("v_proj.weight", "v_proj.bias", "out_proj.weight", "out_proj.bias"):
        assert torch.equal(layer.self_attn.get_parameter(name), old.layers[1].self_attn.get_parameter(name))
    assert torch.equal(layer.mlp.up_proj.weight, old.layers[1].mlp.up_proj.weight)


def test_errors(build: Build) -> None:
    model = build("causal", **SIZES)
    for name, heads, fact in (
        ("randum", None, "randum"),
        ("random:9/vanilla:1", None, "4 heads"),
        ("local_dense", None, "baseline"),
        (["vanilla"], None, "2 layers"),
        ("vanilla", [[0, 1, 2, 3]], "2 layers"),
        ("vanilla", [[0, 1, 2, 2]] * 2, "permutation"),
    ):
        with pytest.raises(ValueError, match=fact):
            synthesize(model, name, heads)
    with pytest.raises(ValueError, match=r"'random' in layer 1 of the decoder"):
        synthesize(synthesize(model, "random"), "vanilla")
    with pytest.raises(ValueError, match="share one bias"):
        synthesize(build("causal", **SIZES, position_embedding_type="relative"), "vanilla", [[1, 0, 2, 3]] * 2)
