"""Products by oneDNN are those of PyTorch, with their gradients, wherever the models use them."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layers import drawn_layer
from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM, SynthesizerForConditionalGeneration, generate
from synthetic_attention.kernels import blockwise, is_fast, matmul, onednn_linear, packed_linear, product

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


@pytest.mark.parametrize("trained", list(itertools.product([True, False], repeat=3))[:-1])
def test_what_is_not_trained_is_not_kept(trained: tuple[bool, bool, bool]) -> None:
    tensors = [torch.randn(4, 8), torch.randn(6, 8), torch.randn(6)]
    found, kept = [], []
    for function in (onednn_linear, F.linear):
        leaves = [t.clone().requires_grad_(needed) for t, needed in zip(tensors, trained, strict=True)]
        saved = list[int]()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], lambda t: t):  # noqa: B023
            y = function(*leaves)
        y.square().sum().backward()
        found.append([leaf.grad for leaf in leaves if leaf.requires_grad])
        kept.append(sorted(saved))
    assert kept[0] == kept[1]
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


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


@pytest.mark.parametrize("bias", [True, False])
def test_a_models_loss_and_tokens(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "vocab_size": 31,
        "d_model": 16,
        "num_heads": 2,
        "d_ff": 24,
        "num_layers": 2,
        "max_position_embeddings": 24,
    }
    config = SynthesizerConfig(**sizes, synthesizer="random+vanilla", dropout_rate=0.0, lm_head_bias=bias)
    model = SynthesizerForConditionalGeneration(config)
    ids, labels = torch.randint(3, 31, (3, 9)), torch.randint(3, 31, (3, 7))
    labels[0, 4:] = -100
    found, tokens = [], []
    for enabled in (True, False):
        monkeypatch.setattr(matmul, "is_faster", lambda enabled=enabled: enabled)
        loss = model.train()(input_ids=ids, labels=labels).loss
        found.append([loss, *torch.autograd.grad(loss, [*model.parameters()])])
        tokens.append(generate(model.eval(), ids, max_new_tokens=8, num_beams=2, do_sample=False))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert tokens[0].equal(tokens[1])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_where_it_is_not_used() -> None:
    x, weight = torch.randn(4, 8), torch.randn(6, 8)
    assert is_fast(x, weight)
    assert not is_fast(x.double(), weight.double())
    assert not is_fast(x[:0], weight)
    assert not is_fast(x, torch.randn(6, 7))
    assert not is_fast(x, weight.to_sparse_csr())
    assert not is_fast(x, weight.to("meta"))
    assert not is_fast(x, weight[:0])
    torch._C._set_mkldnn_enabled(False)
    try:
        assert not is_fast(x, weight)
        assert packed_linear(torch.randn(1024, 1024), None, 4) is None
    finally:
        torch._C._set_mkldnn_enabled(True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not is_fast(x, weight)
    layer = nn.Linear(8, 6)
    found = torch.func.vmap(lambda row: torch.tensor(is_fast(row[None], layer.weight)))(x)
    assert not found.any()


def test_small_products_and_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_LEAST_PRODUCTS", 8 * 6 * 5)
    monkeypatch.setattr(matmul, "_LEAST_WEIGHTS", 8 * 6 + 1)
    weight = torch.randn(6, 8)
    assert not is_fast(torch.randn(4, 8), weight)
    assert is_fast(torch.randn(5, 8), weight)
    assert is_fast(torch.randn(1, 8), torch.randn(7, 8))
    monkeypatch.undo()
    for name, avx512, expected in (("AMD EPYC", True, True), ("AMD EPYC", False, False), ("Intel Xeon", True, False)):
        found = {"cpu_name": name, "avx512_f": avx512}
        with monkeypatch.context() as patched:
            patched.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
            assert matmul.is_faster.__wrapped__() == (expected and torch.backends.mkl.is_available())


def test_a_causal_model_is_compiled_and_traced_without_them() -> None:
    sizes = {
        "vocab_size": 31,
        "d_model": 16,
        "num_heads": 2,
        "d_ff": 24,
        "num_layers": 1,
        "max_position_embeddings": 12,
    }
    config = SynthesizerConfig(**sizes, synthesizer="random", is_encoder_decoder=False, dropout_rate=0.0)
    model, ids = SynthesizerForCausalLM(config).eval(), torch.randint(3, 31, (2, 7))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)
    layer, x = model.model.decoder.layers[0].mlp, torch.randn(2, 7, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(layer, x, check_trace=False)
    torch.testing.assert_close(traced(x), layer(x), rtol=1e-4, atol=1e-5)
