"""Padding left out of the projections: the same layer, and real tokens only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synthetic_attention import SynthesizerAttention
from synthetic_attention.masks import Padding
from synthetic_attention.packing import Packing

B, N, HEAD, H = 3, 13, 5, 2


def a_mask(kind: str) -> Tensor:
    slots = torch.arange(N)
    if kind == "right":
        return slots < torch.tensor([13, 7, 1])[:, None]
    if kind == "left":
        return slots >= torch.tensor([0, 6, 11])[:, None]
    return torch.tensor([[1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 1], [0] * N, [0] * 6 + [1] * 7]).bool()


@pytest.mark.parametrize("kind", ["right", "left", "holes"])
def test_there_and_back(kind: str) -> None:
    mask = a_mask(kind)
    packing, x = Packing.of(mask), torch.randn(B, N, 4, dtype=torch.float64)
    tokens = packing.pack(x)
    assert torch.equal(tokens, x[mask])
    assert torch.equal(packing.pad(tokens), x * mask[..., None])
    aligned = packing.pad_aligned(tokens)
    assert torch.equal(aligned, Padding.from_mask(mask).align(x) * packing_mask(mask)[..., None])
    assert torch.equal(packing.pack_aligned(aligned), tokens)
    columns = packing.pad_columns(tokens.t())
    assert torch.equal(columns, aligned.permute(2, 0, 1))
    assert torch.equal(packing.pack_columns(columns), tokens.t())


def packing_mask(mask: Tensor) -> Tensor:
    return torch.arange(N) < mask.sum(1, keepdim=True)


@pytest.mark.parametrize("way", ["pack", "pack_aligned", "pack_columns", "pad", "pad_aligned", "pad_columns"])
def test_gradients(way: str) -> None:
    packing = Packing.of(a_mask("holes"))
    n = packing.given.shape[0]
    shapes = {"pack": (B, N, 2), "pack_aligned": (B, N, 2), "pack_columns": (2, B, N), "pad_columns": (2, n)}
    x = torch.randn(shapes.get(way, (n, 2)), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(getattr(packing, way), (x,))


@pytest.mark.parametrize("name", ["random", "dense", "factorized_dense", "vanilla", "random+vanilla", "dense+vanilla"])
@pytest.mark.parametrize("kind", ["right", "left", "holes"])
@pytest.mark.parametrize("own_value", [False, True])
def test_a_packed_layer_is_the_layer(name: str, kind: str, own_value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = SynthesizerAttention(H * HEAD, H, name, N).double()
    x, v, g = (torch.randn(B, N, H * HEAD, dtype=torch.float64, requires_grad=True) for _ in range(3))
    # Of random, only the values see the input.
    inputs = [v] if own_value and name == "random" else [x, v] if own_value else [x]
    parameters = [*inputs, *layer.parameters()]

    def run(packed: bool) -> list[Tensor]:
        monkeypatch.setattr("synthetic_attention.attention.SHORT_COLUMNS", 0)
        monkeypatch.setattr(Padding, "packing", property(Padding._pack if packed else lambda _: None))
        y = layer(x, a_mask(kind), value=v if own_value else None)
        return [y, *torch.autograd.grad(y, parameters, g)]

    for packed, padded in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(packed, padded)


def test_projections_see_real_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    layer = SynthesizerAttention(H * HEAD, H, "vanilla", N)
    for projection in (layer.in_proj, layer.out_proj):
        projection.register_forward_hook(lambda _, x, y: seen.append(x[0].shape[:-1].numel()))
    mask = a_mask("right")
    layer(torch.randn(B, N, H * HEAD), mask)
    assert seen == [int(mask.sum())] * 2


def test_a_little_padding_is_computed() -> None:
    mask = torch.ones(B, N)
    mask[0, -1] = 0
    assert Padding.from_mask(mask).packing is None
    assert Padding.from_mask(a_mask("right")).packing is not None
