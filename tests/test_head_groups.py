"""Groups of heads: each is a layer of its own heads, side by side with the others."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from layers import GROUPS, drawn_layer
from synthetic_attention import (
    GroupedLogits,
    MixedLogits,
    SharedLogits,
    SynthesizerAttention,
    SynthesizerMultiheadAttention,
    attend,
)
from synthetic_attention.layout import TokenLayout

B, T, D, N = 3, 7, 12, 11
LEFT = torch.tensor([[0] * 3 + [1] * 4, [1] * 7, [0] * 6 + [1]])
SENTENCES = torch.tensor([[1, 1, 1, 2, 2, 2, 2], [1, 2, 2, 3, 3, 3, 0], [1, 1, 1, 1, 1, 1, 1]])
# In the last one kernels of other forms read values that are laid out for shared logits.
LAYERS = {**GROUPS, "random+vanilla:1/factorized_dense:1/random:2": 4}
CALLS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"is_causal": True},
    "left": {"attention_mask": LEFT},
    "causal left": {"attention_mask": LEFT, "is_causal": True},
    "sentences": {"attention_mask": TokenLayout.of_segments(SENTENCES)},
}


def separate_layers(layer: SynthesizerAttention) -> list[SynthesizerAttention]:
    """A layer for each group, of its heads only, with the same parameters; the first has the output bias."""
    found = []
    for heads, function in layer.function.groups():
        size, features = heads.stop - heads.start, slice(heads.start * layer.head_dim, heads.stop * layer.head_dim)
        name = "+".join(part.name for part in function.components)
        own = SynthesizerAttention(D, size, name, N, head_dim=layer.head_dim).double()
        own.function = copy.deepcopy(function)
        with torch.no_grad():
            own.v_proj.weight.copy_(layer.v_proj.weight[features])
            own.v_proj.bias.copy_(layer.v_proj.bias[features])
            own.out_proj.weight.copy_(layer.out_proj.weight[:, features])
            own.out_proj.bias.copy_(layer.out_proj.bias if not found else torch.zeros(D))
        found.append(own)
    return found


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_separate_layers_side_by_side(name: str, call: str) -> None:
    """Outputs, and the gradients of the input and of all parameters."""
    layer, x = drawn_layer(D, LAYERS[name], name, N), torch.randn(B, T, D).double()
    parts, gradient = separate_layers(layer), torch.randn(B, T, D).double()
    results = []
    for modules in ([layer], parts):
        given = x.clone().requires_grad_()
        y = sum((module(given, **CALLS[call]) for module in modules), start=torch.zeros(()).double())
        y.backward(gradient)
        results.append((y, given.grad))
    torch.testing.assert_close(results[0], results[1], atol=1e-9, rtol=1e-9)
    for key, of_whole in layer.function.named_parameters():
        _, group, own = key.split(".", 2)
        of_part = parts[int(group)].function.get_parameter(own)
        torch.testing.assert_close(of_whole.grad, of_part.grad, atol=1e-9, rtol=1e-9)
    for dim, projection, part in ((0, "v_proj", "weight"), (0, "v_proj", "bias"), (1, "out_proj", "weight")):
        of_parts = [getattr(getattr(each, projection), part).grad for each in parts]
        of_whole = getattr(getattr(layer, projection), part).grad
        torch.testing.assert_close(of_whole, torch.cat(of_parts, dim=dim), atol=1e-9, rtol=1e-9)


MALFORMED = ["random:6", "random:0/vanilla", "random:x/vanilla", "random:6:2/vanilla", "/random", "random / vanilla"]
ILL_FITTING = ["random:9/vanilla", "random:8/vanilla", "random:6/vanilla:3", "dense/random/vanilla"]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        *((name, "groups of heads.*random:6/vanilla:2") for name in MALFORMED),
        *((name, "8 heads") for name in ILL_FITTING),
        ("random:6/vanila:2", "'vanila'.*vanilla"),
        ("random+/vanilla", "''"),
        ("linformer/vanilla", "'linformer'.*alone"),
        ("random:6/local_dense+vanilla:2", "'local_dense'.*alone"),
    ],
)
def test_groups_that_cannot_be(name: str, facts: str) -> None:
    with pytest.raises(ValueError, match=facts):
        SynthesizerAttention(64, 8, name, N)


def test_options_are_those_of_all_groups_with_the_function() -> None:
    options = {"factorized_random": {"rank": 3}, "mixture": {"gate": "sigmoid"}}
    name = "factorized_random:1/factorized_random+vanilla:2/dense+vanilla:1"
    first, second, third = SynthesizerAttention(D, 4, name, N, synthesizer_options=options).function.components
    assert [first.row_factor.shape, second.components[0].row_factor.shape] == [(1, N, 3), (2, N, 3)]
    assert [second.gate.shape, third.gate.shape] == [(1,), (1,)]
    with pytest.raises(ValueError, match=r"sigmoid.*3 components"):
        SynthesizerAttention(D, 4, "dense/dense+random+vanilla", N, synthesizer_options=options)


@pytest.mark.parametrize("need_weights", [False, True])
def test_heads_that_share_weights_share_their_dropout_mask(need_weights: bool) -> None:
    layer = SynthesizerAttention(D, 4, "random:3/vanilla:1", N, dropout=0.5)
    nn.init.eye_(layer.out_proj.weight)
    x = torch.randn(1, T, D).expand(B, T, D)
    y = layer(x, need_weights=True)[0] if need_weights else layer(x)
    torch.testing.assert_close(y[0, :, :9], y[1, :, :9])
    assert (y[0, :, 9:] - y[1, :, 9:]).abs().max() > 1e-3


def test_it_starts_from_multihead_attention() -> None:
    """Where all groups have vanilla it computes the same; other groups get values and output projection."""
    mha, x = nn.MultiheadAttention(D, 4, batch_first=True, dtype=torch.float64).eval(), torch.randn(B, T, D).double()
    nn.init.normal_(mha.in_proj_bias)
    name = "random+vanilla:1/vanilla:1/dense+vanilla:2"
    layer = SynthesizerMultiheadAttention.from_multihead_attention(mha, name, N)
    for got, want in zip(layer(x, x, x), mha(x, x, x), strict=True):
        torch.testing.assert_close(got, want)
    half = SynthesizerMultiheadAttention.from_multihead_attention(mha, "random:3/vanilla:1", N)
    _, weights = mha(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(half(x, x, x, average_attn_weights=False)[1][:, 3], weights[:, 3])


def test_grouped_logits() -> None:
    """As a whole matrix, with a bias for all heads or each, and where numbers of heads do not fit."""
    one, other, value = torch.randn(2, T, T), torch.randn(B, 1, T, T), torch.randn(B, 3, T, 5)
    logits = GroupedLogits([SharedLogits(one), SharedLogits(other)], [2, 1])
    whole = torch.cat([one.expand(B, -1, -1, -1), other], dim=1)
    assert torch.equal(logits.dense(), whole)
    assert torch.equal(logits.dense(4), whole[..., :4])
    for bias in (torch.randn(T, T), torch.randn(3, T, T), torch.randn(B, 3, T, T)):
        y = attend(logits, value, LEFT, attn_bias=bias)
        torch.testing.assert_close(y, attend(SharedLogits(whole + bias), value, LEFT))
    with pytest.raises(ValueError, match=r"\(2, 1\).*4"):
        attend(logits, torch.randn(B, 4, T, 5))
    with pytest.raises(ValueError, match="1 groups"):
        GroupedLogits([SharedLogits(one)], [1, 1])
    with pytest.raises(ValueError, match="groups of heads in a mixture"):
        MixedLogits([logits, SharedLogits(whole)])
