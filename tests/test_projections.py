"""Projections are `nn.Linear`: hooks, pruning, adapters, offload and quantization take effect on all of them."""

from __future__ import annotations

import copy

import pytest
import torch
from accelerate import cpu_offload
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from layers import drawn_layer
from synthetic_attention import SynthesizerAttention, SynthesizerConfig, SynthesizerForCausalLM
from synthetic_attention.kernels.matmul import linear, packed_linear

D, H, N = 16, 2, 12
# One for each way from the input to the heads.
NAMES = ["vanilla", "dense", "random", "factorized_random", "factorized_dense", "random+vanilla", "dense+vanilla"]
MASK = torch.arange(9) < torch.tensor([9, 2, 3, 4])[:, None]


def make(name: str) -> SynthesizerAttention:
    return drawn_layer(D, H, name, N)


def make_lm(**fields: bool) -> SynthesizerForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "d_model": D, "num_heads": H, "d_ff": 8, "num_layers": 1, "max_position_embeddings": N}
    return SynthesizerForCausalLM(SynthesizerConfig(**sizes, is_encoder_decoder=False, dropout_rate=0.0, **fields))


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


@pytest.mark.parametrize("mask", [None, MASK], ids=["full", "padded"])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_hooks_are_called(name: str, batch: int, mask: Tensor | None) -> None:
    layer, x = make(name), torch.randn(batch, 9, D, dtype=torch.float64)
    mask = None if mask is None else mask[:batch]
    expected, calls = layer(x, mask), list[str]()
    for part in ("v_proj", "out_proj"):
        getattr(layer, part).register_forward_hook(lambda *_, part=part: calls.append(part))
    torch.testing.assert_close(layer(x, mask), expected)
    assert sorted(calls) == ["out_proj", "v_proj"]
    layer.out_proj.register_forward_hook(lambda module, given, output: output * 3)
    torch.testing.assert_close(layer(x, mask, value=x), 3 * expected)
    assert calls.count("v_proj") == 2


@pytest.mark.parametrize("mask", [None, MASK], ids=["full", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_projections_may_be_replaced(name: str, mask: Tensor | None) -> None:
    """Without projections, the output is weights times input."""
    layer, x = make(name), torch.randn(4, 9, D, dtype=torch.float64, requires_grad=True)
    layer.v_proj = layer.out_proj = nn.Identity()
    y, weights = layer(x, mask, need_weights=True)
    want = (weights @ x.unflatten(-1, (H, -1)).transpose(1, 2)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(y, want)
    y.sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(layer(x, mask), want)


@pytest.mark.parametrize("part", ["v_proj", "out_proj"])
@pytest.mark.parametrize("name", NAMES)
def test_pruning_and_parametrizations(name: str, part: str) -> None:
    layer, x = make(name), torch.randn(4, 9, D, dtype=torch.float64)
    pruned, doubled = copy.deepcopy(layer), copy.deepcopy(layer)
    prune.l1_unstructured(getattr(pruned, part), "weight", 0.5)
    parametrize.register_parametrization(getattr(doubled, part), "weight", Doubled())
    for changed in (pruned, doubled):
        plain = copy.deepcopy(layer)
        getattr(plain, part).weight.data = getattr(changed, part).weight.detach().clone()
        # Twice: a step must not stand in the way of the next one.
        for _ in range(2):
            y = changed(x)
            y.sum().backward()
            torch.testing.assert_close(y, plain(x))


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_accelerate_brings(name: str) -> None:
    layer, x = make(name).eval(), torch.randn(4, 9, D, dtype=torch.float64)
    with torch.no_grad():
        expected = layer(x)
        cpu_offload(layer.v_proj, torch.device("cpu"))
        cpu_offload(layer.out_proj, torch.device("cpu"))
        assert layer.v_proj.weight.is_meta
        torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("has_hook", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_head_with_a_bias_or_a_hook(training: bool, has_hook: bool) -> None:
    """The fused loss and the losses of tokens are those of its logits."""
    model, ids = make_lm(tie_word_embeddings=False).train(training), torch.randint(4, 30, (2, 9))
    before = model(ids, labels=ids).loss
    if has_hook:
        model.lm_head.register_forward_hook(lambda module, given, output: output * 0.5)
    else:
        model.set_output_embeddings(nn.Linear(D, 30))
        nn.init.normal_(model.lm_head.bias, std=3.0)
    loss = model(ids, labels=ids).loss
    assert abs(loss - before) > 1e-3
    model.config.fused_loss = False
    torch.testing.assert_close(loss, model(ids, labels=ids).loss)
    loss.backward()
    assert all(parameter.grad.any() for parameter in model.lm_head.parameters())
    found = model.eval().token_losses(ids)
    torch.testing.assert_close(found[:, 1:].mean(), loss.detach())
    assert not found[:, 0].any()


@pytest.mark.parametrize("shape", [(11,), (3, 4), (4, 4, 4), (0,)])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_linear_is_the_module(shape: tuple[int, ...], bias: bool) -> None:
    module, x = nn.Linear(7, 17, bias=bias), torch.randn(*shape, 7)
    y = linear(module, x)
    torch.testing.assert_close(y, module(x))
    assert y.is_contiguous()
    torch.testing.assert_close(linear(module, x.mT.contiguous().mT if x.dim() > 1 else x), y)


def test_packed_weights_compute_what_linear_does() -> None:
    weight, bias, x = torch.randn(1029, 512), torch.randn(1029), torch.randn(4, 512)
    assert packed_linear(weight, bias, rows=3) is None
    assert packed_linear(weight[:500], bias, rows=4) is None
    assert packed_linear(weight.double(), bias, rows=4) is None
    for given in (bias, None):
        packed = packed_linear(weight, given, rows=4)
        assert packed is not None
        with torch.inference_mode():
            y = packed(x)
        torch.testing.assert_close(y, nn.functional.linear(x, weight, given), rtol=1e-4, atol=1e-4)


def test_packed_weights_follow_a_change_of_the_weights() -> None:
    """Also by a change that autograd does not count."""
    weight, x = torch.randn(512, 512), torch.randn(4, 512)
    for row in (None, 3, 5):
        if row is not None:
            weight.data[row] += 1
        packed = packed_linear(weight, None, rows=4)
        assert packed is not None
        with torch.inference_mode():
            torch.testing.assert_close(packed(x), nn.functional.linear(x, weight), rtol=1e-4, atol=1e-4)
