"""SynthesizerAttention as a module: weights from torch's, compilation, precision, saving, odd inputs, refusals."""

import copy
import gc

import pytest
import torch
from torch import nn

from layers import FUNCTIONS, HEADS, MIXTURES
from synthetic_attention import SynthesizerAttention, reference

D, H, T, N, B = 12, HEADS, 7, 11, 2
NAMES = [*FUNCTIONS, "random+vanilla", "dense+vanilla", "random+dense", "factorized_dense+vanilla"]


def make(name: str = "random+vanilla", **keywords) -> SynthesizerAttention:
    return SynthesizerAttention(D, H, name, N, **keywords)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["vanilla", *(name for name in MIXTURES if name.endswith("+vanilla"))])
def test_from_multihead_attention(name, bias):
    """With vanilla it starts where the module is, and all parts can be trained; fixed random cannot start at zero."""
    mha, x = nn.MultiheadAttention(D, H, bias=bias, dropout=0.25, batch_first=True).eval(), torch.randn(B, T, D)
    if bias:
        nn.init.normal_(mha.in_proj_bias)
        nn.init.normal_(mha.out_proj.bias)
    if "fixed_random" in name:
        with pytest.raises(ValueError, match="'fixed_random'"):
            SynthesizerAttention.from_multihead_attention(mha, name, N)
        return
    with torch.device("meta"):
        layer = SynthesizerAttention.from_multihead_attention(mha, name, N)
    assert (layer.dropout, layer.training) == (0.25, False)
    y, w = layer(x, need_weights=True)
    out, weights = mha(x, x, x, average_attn_weights=False)
    torch.testing.assert_close((y, w), (out, weights), atol=1e-6, rtol=0)
    y.square().sum().backward()
    for function in layer.function.components if "+" in name else []:
        assert any(p.grad is not None and p.grad.abs().max() > 1e-5 for p in function.parameters()), function.name
    with torch.no_grad():
        mha.in_proj_weight.zero_()
        mha.out_proj.weight.zero_()
    torch.testing.assert_close(layer(x), y)


def test_from_multihead_attention_without_vanilla_or_with_another_gate():
    mha, x = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64), torch.randn(B, T, D).double()
    for gate in ("sum", "sigmoid"):
        options = {"mixture": {"gate": gate}}
        layer = SynthesizerAttention.from_multihead_attention(mha, "vanilla+dense", N, synthesizer_options=options)
        torch.testing.assert_close(layer(x), mha(x, x, x)[0])
    layer = SynthesizerAttention.from_multihead_attention(mha, "random", N)
    torch.testing.assert_close(layer.v_proj.weight, mha.in_proj_weight[2 * D :])
    torch.testing.assert_close(layer.out_proj.weight, mha.out_proj.weight)


@pytest.mark.parametrize(
    "keywords", [{"kdim": 5}, {"vdim": 5}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str
)
def test_from_multihead_attention_refuses_what_it_cannot_hold(keywords):
    with pytest.raises(ValueError, match=r"kdim.*add_bias_kv.*add_zero_attn"):
        SynthesizerAttention.from_multihead_attention(nn.MultiheadAttention(D, H, **keywords))


def drawn(name: str) -> SynthesizerAttention:
    """A layer in float64 of whose parameters and buffers none is zero or small."""
    layer = make(name, dtype=torch.float64)
    for tensor in layer.state_dict().values():
        nn.init.normal_(tensor)
    return layer


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_layer_is_the_papers_equation(name, is_causal):
    """The reference, fed this layer's parameters one by one, gives its output in float64."""
    layer, x = drawn(name), torch.randn(T, D, dtype=torch.float64)
    heads = [lambda x, h=h: FUNCTIONS[name].logits(layer.function, h, x) for h in range(H)]
    v, o = layer.v_proj, layer.out_proj
    want = reference.synthesizer(x, heads, v.weight.T, o.weight.T, v.bias, o.bias, is_causal=is_causal)
    torch.testing.assert_close(layer(x, is_causal=is_causal), want)


def test_relative_random_beyond_its_distance():
    """Offsets of N and more take the last logit of their side."""
    layer = make("relative_random", synthesizer_options={"relative_random": {"distance": 3, "std": 1.0}}).double()
    assert layer.function.offsets.shape == (H, 5)
    assert layer.max_length is None
    _, w = layer(torch.randn(T + N, D, dtype=torch.float64), need_weights=True)
    for h in range(H):
        want = torch.softmax(reference.relative_random(layer.function.offsets[h], T + N), dim=-1)
        torch.testing.assert_close(w[h], want)
    with pytest.raises(ValueError, match="max_length"):
        SynthesizerAttention(D, H, "relative_random")


def test_mixture_is_the_weighted_sum_of_its_functions():
    layer, x = drawn("random+dense+vanilla"), torch.randn(T, D, dtype=torch.float64)
    alphas = torch.softmax(layer.function.gate, dim=0)
    _, w = layer(x, need_weights=True)
    for h in range(H):
        terms = [FUNCTIONS[f.name].logits(f, h, x) for f in layer.function.functions]
        torch.testing.assert_close(w[h], torch.softmax(reference.mixture(terms, alphas[:, h]), dim=-1))


@pytest.mark.parametrize(("gate", "parameters"), [("softmax", 2 * H), ("sigmoid", 1), ("sum", 0)])
def test_gates(gate, parameters):
    layer = make("random+vanilla", synthesizer_options={"mixture": {"gate": gate}})
    parts = sum(p.numel() for part in layer.function.functions for p in part.parameters())
    assert sum(p.numel() for p in layer.function.parameters()) - parts == parameters
    weights = layer.function.weights()
    if gate == "sum":
        assert weights is None
    else:
        torch.testing.assert_close(weights.sum(0), torch.ones_like(weights[0]))
        torch.testing.assert_close(weights, torch.full_like(weights, 0.5))
        nn.init.constant_(layer.function.gate, 3.0)
    if gate == "sigmoid":
        s = torch.sigmoid(torch.tensor(3.0))
        torch.testing.assert_close(layer.function.weights().flatten(), torch.stack([s, 1 - s]))


def test_options_of_dense_and_factorized_dense():
    layer = make("dense", synthesizer_options={"dense": {"share_heads": True, "bias": False}})
    assert sum(p.numel() for p in layer.function.parameters()) == D // H * N + D * (D + 1)
    layer = make("factorized_dense", synthesizer_options={"factorized_dense": {"a": 2}}, bias=False)
    assert sum(p.numel() for p in layer.function.parameters()) == D * (2 + 6) + D * D


@pytest.mark.parametrize("name", ["random", "fixed_random", "factorized_random"])
def test_scale_of_a_random_table(name):
    options = {name: {"std": 0.25, **({"rank": 16} if name == "factorized_random" else {})}}
    layer = SynthesizerAttention(64, 4, name, 127, synthesizer_options=options, dtype=torch.float64)
    _, w = layer(torch.randn(1, 127, 64, dtype=torch.float64), need_weights=True)
    logits = w.log()
    assert (logits - logits.mean(-1, keepdim=True)).std().item() == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_compiles_to_one_graph(name):
    """Outputs and gradients, with a mask; the graph breaks on nothing."""
    # All layers share one code object, and with it one limit on recompilations.
    torch._dynamo.reset()
    layer, x, mask = make(name), torch.randn(B, T, D), torch.tensor([[0] * 3 + [1] * (T - 3), *[[1] * T] * (B - 1)])
    compiled = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="aot_eager")
    for run in (layer, compiled):
        run(x, attention_mask=mask, is_causal=True).square().sum().backward()
    torch.testing.assert_close(compiled(x, attention_mask=mask), layer(x, attention_mask=mask), atol=1e-5, rtol=1e-5)
    for (key, parameter), other in zip(layer.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(other.grad, parameter.grad, atol=1e-5, rtol=1e-5, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("name", NAMES)
def test_reset_parameters_and_the_meta_device(name):
    layer, fresh, x = make(name, device="meta"), make(name), torch.randn(B, T, D)
    assert all(t.is_meta for t in (layer(x.to("meta")), *layer.parameters(), *layer.buffers()))
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer(x).isfinite().all()
    assert layer.state_dict().keys() == fresh.state_dict().keys()
    other = make(name).state_dict()
    for key, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, layer.state_dict()[key]) == torch.equal(tensor, other[key]), key
    layer.load_state_dict(fresh.state_dict())
    assert torch.equal(layer(x), fresh(x))


def test_training_memory_is_linear_in_length():
    """No tensor of B·H·L² elements is kept for the backward."""
    length, batch, heads = 257, 4, 2
    for name in ("random", "vanilla", "dense", "random+vanilla", "fixed_random+vanilla", "factorized_dense"):
        layer = SynthesizerAttention(8, heads, name, length)
        saved: list[int] = []

        def pack(t, saved=saved):
            saved.append(t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            layer(torch.randn(batch, length, 8), is_causal=True)
        gc.collect()
        # R itself, H·N², is a parameter; it may be kept as it is and cut. B = 4 matrices would be too many.
        assert max(saved) <= heads * length**2, name
        assert sum(n for n in saved if n >= length**2) <= 2 * heads * length**2, name


def call_without_features(name: str) -> None:
    layer = make(name)
    layer.function.functions[-1].num_features = 0
    layer(torch.randn(B, T, D))


@pytest.mark.parametrize(
    ("make_layer", "message"),
    [
        (lambda: SynthesizerAttention(10, 3, "vanilla"), r"d_model=10, num_heads=3.*head_dim"),
        (lambda: SynthesizerAttention(D, H, "nonsense", N), r"unknown synthesizer 'nonsense'.*dense.*vanilla"),
        (lambda: SynthesizerAttention(D, H, "linformer", N), r"'linformer'.*SynthesizerConfig"),
        (lambda: SynthesizerAttention(D, H, "random"), "max_length"),
        (lambda: SynthesizerAttention(D, H, "vanilla", dropout=1.5), r"dropout=1\.5"),
        (lambda: call_without_features("random+dense"), r"got 1 projections.*num_features=0"),
        (lambda: make("random", synthesizer_options={"nonsense": {}}), r"nonsense.*factorized_random.*mixture"),
        (lambda: make("random", synthesizer_options={"random": {"sigma": 1}}), r"'sigma'.*'random'.*std"),
        (lambda: make("random", synthesizer_options={"random": {"std": -1.0}}), r"std=-1\.0.*positive"),
        (lambda: make("dense", synthesizer_options={"dense": {"share_heads": "no"}}), r"share_heads='no'.*bool"),
        (lambda: make("random+dense", synthesizer_options={"mixture": {"gate": "max"}}), r"gate='max'.*softmax.*sum"),
        (
            lambda: make("random+dense+vanilla", synthesizer_options={"mixture": {"gate": "sigmoid"}}),
            r"sigmoid.*3 components.*two",
        ),
    ],
)
def test_layers_that_cannot_be_are_refused(make_layer, message):
    with pytest.raises(ValueError, match=message):
        make_layer()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"attention_mask": torch.ones(B, T + 1)}, r"attention_mask.*\(2, 8\).*\(2, 7\)"),
        ({"attention_mask": torch.ones(B, T, T)}, r"attention_mask.*\(2, 7, 7\).*attn_bias"),
        ({"attn_bias": torch.ones(T, T + 1)}, r"attn_bias.*\(7, 8\).*T = 7, S = 7"),
        ({"value": torch.ones(B, T, D + 1)}, r"value.*\(2, 7, 13\).*\(2, 7, 12\)"),
        ({"cache": object()}, "layer_idx"),
        *(({"x": torch.ones(shape)}, r"got x of shape.*\(L, 12\)") for shape in ((B, T, D + 1), (1, B, T, D), (D,))),
    ],
)
def test_calls_that_cannot_be_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        make()(**{"x": torch.randn(B, T, D), **keywords})
