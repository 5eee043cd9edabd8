"""Convolutions, local dense attention and Linformer against their equations, alone, padded, and with gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from synthetic_attention import SynthesizerConfig, TokenLayout, reference
from synthetic_attention.attention import build
from synthetic_attention.baselines import Baseline, LightweightConvolution

F64 = torch.float64
WIDTH, HEADS = 6, 2
CONVOLUTIONS = ("lightweight_conv", "dynamic_conv")
Make = Callable[..., Baseline]


def make(name: str, max_length: int | None = 11, *, layer_idx: int | None = None, **options: Any) -> Baseline:
    """A layer in float64 of whose parameters none is near zero; `bias` and `dropout` are of the layer."""
    own = {key: options.pop(key) for key in ("bias", "dropout") if key in options}
    layer = build(
        name, WIDTH, HEADS, max_length, is_causal=False, options={name: options}, layer_idx=layer_idx, dtype=F64, **own
    )
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def gated(layer: Baseline, x: Tensor) -> Tensor:
    return layer.v_proj(x) * torch.sigmoid(layer.gate_proj(x))


def kernels(layer: Baseline, x: Tensor) -> Tensor:
    if isinstance(layer, LightweightConvolution):
        return layer.kernel
    return layer.kernel_proj(gated(layer, x)).unflatten(-1, (HEADS, -1))


# Beyond two blocks of 32 rows, or of a window's length, work is in blocks.
@pytest.mark.parametrize(("length", "size"), [(1, 3), (2, 7), (5, 1), (9, 4), (63, 3), (71, 5), (97, 31), (131, 45)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_its_equation(name: str, is_causal: bool, length: int, size: int) -> None:
    layer = make(name, kernel_size=size)
    x = torch.randn(2, length, WIDTH, dtype=F64)
    before = size - 1 if is_causal else (size - 1) // 2
    rows = [layer.out_proj(reference.convolution(gated(layer, row), kernels(layer, row), before)) for row in x]
    expected = torch.stack(rows)
    y, weights = layer(x, is_causal=is_causal, need_weights=True)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(layer(x, is_causal=is_causal), expected)
    values = gated(layer, x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    torch.testing.assert_close(layer.out_proj((weights @ values).transpose(1, 2).flatten(2)), expected)


@pytest.mark.parametrize(("length", "size"), [(1, 3), (2, 7), (5, 1), (9, 4), (71, 5), (97, 31)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_local_dense_is_its_equation(is_causal: bool, length: int, size: int) -> None:
    layer = make("local_dense", window=size)
    x = torch.randn(2, length, WIDTH, dtype=F64)
    before = size - 1 if is_causal else (size - 1) // 2
    w_v, w_1 = (module.weight.T.chunk(HEADS, dim=1) for module in (layer.v_proj, layer.q_proj))
    b_v, b_1 = (module.bias.chunk(HEADS) for module in (layer.v_proj, layer.q_proj))
    y, weights = layer(x, is_causal=is_causal, need_weights=True)
    for b, row in enumerate(x):
        heads = []
        for h in range(HEADS):
            expected = reference.local_dense(row, w_1[h], layer.key[h].T, before, b_1[h], layer.key_bias[h])
            torch.testing.assert_close(weights[b, h], expected)
            heads.append(expected @ reference.affine(row, w_v[h], b_v[h]))
        torch.testing.assert_close(y[b], layer.out_proj(torch.cat(heads, dim=-1)))
    torch.testing.assert_close(layer(x, is_causal=is_causal), y)


@pytest.mark.parametrize("length", [1, 2, 7, 11])
def test_linformer_is_its_equation(length: int) -> None:
    layer = make("linformer", rank=3)
    x = torch.randn(2, length, WIDTH, dtype=F64)
    rows = []
    for row in x:
        value, query, key = (module(row).chunk(HEADS, dim=-1) for module in (layer.v_proj, layer.q_proj, layer.k_proj))
        heads = [
            reference.linformer(query[h], key[h], value[h], layer.key_sums[0], layer.value_sums[0])
            for h in range(HEADS)
        ]
        rows.append(layer.out_proj(torch.cat(heads, dim=-1)))
    y, weights = layer(x, need_weights=True)
    torch.testing.assert_close(y, torch.stack(rows))
    torch.testing.assert_close(layer(x), y)
    values = layer.v_proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    torch.testing.assert_close(layer.out_proj((weights @ values).transpose(1, 2).flatten(2)), y)


MAKERS: dict[str, Make] = {
    "lightweight": partial(make, "lightweight_conv", kernel_size=4),
    "dynamic": partial(make, "dynamic_conv", kernel_size=4),
    "local dense": partial(make, "local_dense", window=4),
    "local dense, no bias": partial(make, "local_dense", window=3, bias=False),
    "linformer": partial(make, "linformer", rank=3),
}


# With little padding, it is computed too.
@pytest.mark.parametrize("is_little", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_padded_row_gives_what_it_gives_alone(make: Make, is_causal: bool, is_little: bool) -> None:
    layer = make()
    if is_causal and not layer.can_be_causal:
        return
    x, mask = torch.randn(5, 9, WIDTH, dtype=F64), torch.ones(5, 9, dtype=torch.bool)
    if is_little:
        mask[1, 4] = False
    else:
        mask[1, :3] = mask[2, 5:] = mask[3, [0, 2, 3, 7]] = mask[4] = False
    assert (TokenLayout.of(mask, x).real_tokens is None) == is_little
    y, weights = layer(x, mask, is_causal=is_causal, need_weights=True)
    assert not y[~mask].any()
    for row, real in enumerate(mask[:4]):
        alone, of_alone = layer(x[row, real], is_causal=is_causal, need_weights=True)
        torch.testing.assert_close(y[row, real], alone)
        torch.testing.assert_close(weights[row][:, real][:, :, real], of_alone)
        assert not weights[row][:, ~real].any()
        assert not weights[row][:, :, ~real].any()


PADDED = {"none": [6, 6], "right": [6, 4], "left": [-4, 6]}


@pytest.mark.parametrize("fixed_size", [False, True])
@pytest.mark.parametrize("lengths", PADDED.values(), ids=PADDED)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_cache_changes_neither_sums_nor_weights(make: Make, lengths: list[int], fixed_size: bool) -> None:
    layer = make(layer_idx=0)
    if not layer.can_be_causal:
        return
    slots = torch.arange(6)
    mask = torch.stack([slots < length if length > 0 else slots >= 6 + length for length in lengths])
    x = torch.randn(2, 6, WIDTH, dtype=F64)
    expected, of_all = layer(x, mask, is_causal=True, need_weights=True)
    config = SynthesizerConfig(
        d_model=WIDTH, num_heads=HEADS, num_layers=1, max_position_embeddings=8, synthesizer=layer.synthesizer
    )
    cache = StaticCache(config, max_cache_len=8) if fixed_size else DynamicCache(config=config)
    for start, end in ((0, 3), (3, 4), (4, 6)):
        y, weights = layer(x[:, start:end], mask[:, :end], is_causal=True, need_weights=True, cache=cache)
        torch.testing.assert_close(y, expected[:, start:end])
        torch.testing.assert_close(weights, of_all[:, :, start:end, :end])
        assert not of_all[:, :, start:end, end:].any()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_gradients(make: Make, is_causal: bool) -> None:
    layer = make()
    if is_causal and not layer.can_be_causal:
        return
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, :2] = False
    names = [name for name, _ in layer.named_parameters()]

    def call(x: Tensor, *values: Tensor) -> Any:
        state = dict(zip(names, values, strict=True))
        return torch.func.functional_call(layer, state, (x, mask), {"is_causal": is_causal})

    inputs = [torch.randn(2, 5, WIDTH, dtype=F64), *(value.detach().clone() for value in layer.parameters())]
    assert torch.autograd.gradcheck(call, [value.requires_grad_() for value in inputs], fast_mode=True)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_blocks(name: str) -> None:
    layer = make(name, kernel_size=3)
    x = torch.randn(1, 70, WIDTH, dtype=F64, requires_grad=True)
    g = torch.randn(1, 70, WIDTH, dtype=F64)
    inputs = [x, *layer.parameters()]
    found = torch.autograd.grad(layer(x), inputs, g)
    slow = layer.out_proj(reference.convolution(gated(layer, x[0]), kernels(layer, x[0]), 1))
    for one, other in zip(found, torch.autograd.grad(slow[None], inputs, g), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_dropout_is_of_the_weights_and_in_training_only(make: Make) -> None:
    layer, x = make(dropout=0.5), torch.randn(2, 9, WIDTH, dtype=F64)
    layer.train()
    (one, weights), (other, again) = (layer(x, need_weights=True) for _ in range(2))
    assert not torch.equal(one, other)
    assert torch.equal(weights, again)
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_parameters_are_counted_and_drawn_anew(make: Make) -> None:
    layer = make()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.reset_parameters()
    for name, value in layer.state_dict().items():
        assert not torch.equal(value, before[name]), name
        assert bool(value.any()) != name.endswith("bias"), name
    # The values, the output, and the gate of convolutions.
    others = (3 if layer.name in CONVOLUTIONS else 2) * (WIDTH**2 + (0 if layer.out_proj.bias is None else WIDTH))
    assert sum(value.numel() for value in layer.parameters()) == others + layer.weight_parameters


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("lightweight", {"attn_bias": torch.zeros(5, 5)}, "attn_bias for 'lightweight_conv'"),
        ("linformer", {"is_causal": True}, "is_causal=True for 'linformer'"),
        ("linformer", {"cache": object()}, "cache for 'linformer'"),
        ("dynamic", {"cache": object()}, "is_causal=False"),
    ],
)
def test_what_cannot_be(kind: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MAKERS[kind]()(torch.zeros(1, 5, WIDTH, dtype=F64), **arguments)


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"12 slots.*11"):
        make("linformer")(torch.zeros(1, 12, WIDTH, dtype=F64))
    with pytest.raises(ValueError, match=r"expected \(B, L, 6\)"):
        make("linformer")(torch.zeros(1, 5, 7, dtype=F64))
    with pytest.raises(ValueError, match="max_length"):
        make("linformer", None)
    with pytest.raises(ValueError, match="d_model=7, num_heads=2"):
        build("lightweight_conv", 7, 2, None, is_causal=True)
