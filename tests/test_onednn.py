"""Products by oneDNN are those of PyTorch, with their gradients, wherever the models use them."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from layers import drawn_layer
from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM
from synthetic_attention.kernels import blockwise, matmul
from synthetic_attention.kernels.matmul import is_fast, onednn_linear, product

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """For products of any size, on any processor."""
    monkeypatch.setattr(matmul, "is_faster", lambda: True)
    monkeypatch.setattr(matmul, "_LEAST_PRODUCTS", 0)
    monkeypatch.setattr(matmul, "_LEAST_WEIGHTS", 0)


def layouts(rows: int, columns: int) -> list[Tensor]:
    """By row, by column, with gaps, and one row for all."""
    drawn = [torch.randn(rows, columns), torch.randn(columns, rows).t(), torch.randn(rows, 2 * columns)[:, ::2]]
    return [*drawn, torch.randn(columns).expand(rows, -1)]


@pytest.mark.parametrize(("n", "inner", "out"), [(1, 1, 1), (7, 5, 3), (3, 8, 17), (65, 33, 12)])
def test_outputs_and_all_derivatives(n: int, inner: int, out: int) -> None:
    biases = [None, torch.randn(out), torch.randn(out, 3)[:, 1], torch.randn(1), torch.randn(1, out)]
    for x, weight, upstream in itertools.product(layouts(n, inner), layouts(out, inner), layouts(n, out)):
        for bias in biases:
            found = []
            for function in (onednn_linear, F.linear):
                leaves = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
                y = function(*leaves)
                first = torch.autograd.grad(y, leaves, upstream, create_graph=True)
                second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves, allow_unused=True)
                found.append([y, *first, *(s for s in second if s is not None)])
            for got, expected in zip(*found, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n", "a", "b"), [(9, 3, 4), (5, 6, 2)])
def test_products(n: int, a: int, b: int) -> None:
    for x, y in itertools.product(layouts(n, a), layouts(n, b)):
        expected, out = x.t() @ y, torch.randn(2, a, b)
        batches = torch.stack((x.t(), 2 * x.t())), torch.stack((y, y))
        torch.testing.assert_close(product(x.t(), y), expected)
        torch.testing.assert_close(matmul.batch_product(*batches), torch.stack((expected, 2 * expected)))
        torch.testing.assert_close(matmul.sum_with_product(out, *batches), out + torch.stack((expected, 2 * expected)))
        added = out + torch.stack((expected, 2 * expected))
        matmul.add_product(out, *batches)
        torch.testing.assert_close(out, added)
        matmul.write_product(x.t()[None], y[None], out[1:])
        torch.testing.assert_close(out[1], expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["random", "dense", "random+vanilla", "vanilla+dense", "random:3/vanilla:1"])
def test_a_layer(name: str, causal: bool, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # A block is one example, whose products are written in place.
    monkeypatch.setattr(blockwise, "_SMALL_EXAMPLE", 0)
    layer = drawn_layer(16, 4, name, 12).float().train(training)
    x, mask = torch.randn(3, 9, 16, requires_grad=True), torch.arange(9) < torch.tensor([9, 2, 6])[:, None]
    found = []
    for enabled in (True, False):
        monkeypatch.setattr(matmul, "is_faster", lambda enabled=enabled: enabled)
        with torch.set_grad_enabled(training):
            assert is_fast(x.detach()[0], layer.v_proj.weight) == enabled
            y = layer(x, mask, is_causal=causal)
            leaves = [x, *(p for p in layer.parameters() if p.requires_grad)]
            gradients = torch.autograd.grad(y.square().sum(), leaves, allow_unused=True) if training else []
            found.append([y, *(g for g in gradients if g is not None)])
    # Some gradients are zero but for rounding: that of a bias on the keys.
    largest = max(expected.abs().max() for expected in found[1])
    for got, expected in zip(*found, strict=True):
        assert (got - expected).abs().max() <= 1e-5 * largest


def test_a_causal_model_is_compiled_and_traced_without_them() -> None:
    sizes = {"vocab_size": 31, "d_model": 16, "num_heads": 2, "d_ff": 24, "num_layers": 1}
    config = SynthesizerConfig(**sizes, max_position_embeddings=12, synthesizer="random", is_encoder_decoder=False)
    model, ids = SynthesizerForCausalLM(config).eval(), torch.randint(3, 31, (2, 7))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)
    layer, x = model.model.decoder.layers[0].mlp, torch.randn(2, 7, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(layer, x, check_trace=False)
    torch.testing.assert_close(traced(x), layer(x), rtol=1e-4, atol=1e-5)
