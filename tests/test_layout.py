"""Where the real tokens of a batch stand: alignment, padding left out of the projections, sentences in a row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synthetic_attention import SynthesizerAttention, TokenLayout
from synthetic_attention.attention import build

B, N, HEAD, H = 3, 13, 5, 2
KINDS = ["right", "left", "holes"]


def a_mask(kind: str) -> Tensor:
    slots = torch.arange(N)
    if kind == "right":
        return slots < torch.tensor([13, 7, 1])[:, None]
    if kind == "left":
        return slots >= torch.tensor([0, 6, 11])[:, None]
    return torch.tensor([[1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 1], [0] * N, [0] * 6 + [1] * 7]).bool()


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str) -> None:
    mask, x = a_mask(kind), torch.randn(B, N, 4, dtype=torch.float64)
    layout = TokenLayout.of(mask, x)
    aligned, front = layout.align(x), torch.arange(N) < mask.sum(1, keepdim=True)
    for row in range(B):
        assert torch.equal(aligned[row, : mask[row].sum()], x[row, mask[row]])
    assert torch.equal(layout.aligned.mask, front)
    assert torch.equal(layout.restore(aligned), x * mask[..., None])
    tokens = layout.pack(x)
    assert torch.equal(tokens[0], x[mask])
    assert torch.equal(layout.unpack(tokens), x * mask[..., None])
    scores = torch.randn(B, H, N, N)
    expected = scores * mask[:, None, :, None] * mask[:, None, None]
    assert torch.equal(layout.restore_pairs(layout.align_pairs(scores)), expected)


def test_sentences_in_a_row() -> None:
    segments = torch.tensor([[1, 1, 2, 2, 2, 0, 3], [0, 5, 5, 0, 0, 5, 5], [1] * 7])
    layout, x = TokenLayout.of_segments(segments), torch.randn(3, 7, 4)
    aligned = layout.align(x)
    sentences = [x[0, :2], x[0, 2:5], x[0, 6:], x[1, 1:3], x[1, 5:], x[2]]
    assert aligned.shape == (6, 7, 4)
    for row, sentence in zip(aligned, sentences, strict=True):
        assert torch.equal(row[: len(sentence)], sentence)
    assert layout.aligned.mask.sum(1).tolist() == [len(sentence) for sentence in sentences]
    assert torch.equal(layout.restore(aligned), x * (segments != 0)[..., None])
    for wrong in (torch.zeros(2, 3), torch.ones(3)):
        with pytest.raises(ValueError, match="segment_ids"):
            TokenLayout.of_segments(wrong)


@pytest.mark.parametrize("name", ["random", "dense", "vanilla", "factorized_dense+vanilla"])
def test_a_layer_takes_a_layout(name: str) -> None:
    layer, x, mask = SynthesizerAttention(H * HEAD, H, name, N), torch.randn(B, N, H * HEAD), a_mask("left")
    layout = TokenLayout.of(mask, x)
    expected = layer(x, mask)
    assert torch.equal(layer(x, layout), expected)
    torch.testing.assert_close(layout.restore(layer(layout.align(x), layout.aligned)), expected)
    packed = layer(layout.pack(x), layout.packed)
    assert packed.shape == (1, int(mask.sum()), H * HEAD)
    assert torch.equal(layout.unpack(packed), expected)
    with pytest.raises(ValueError, match=r"\(3, 13\).*\(3, 12\)"):
        layer(x[:, 1:], layout)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", ["random", "dense", "vanilla", "dynamic_conv", "local_dense"])
def test_sentences_under_a_transform(name: str) -> None:
    layer = build(name, H * HEAD, H, 4, is_causal=False).double()
    x = torch.randn(2, 7, H * HEAD, dtype=torch.float64)
    layout = TokenLayout.of_segments(torch.tensor([[1, 1, 2, 2, 2, 0, 3], [0, 5, 5, 0, 0, 5, 5]]))

    def loss(x: Tensor) -> Tensor:
        return layer(x, layout).square().sum()

    (expected,) = torch.autograd.grad(loss(x.requires_grad_()), x)
    torch.testing.assert_close(torch.func.grad(loss)(x.detach()), expected)
    directions = torch.randn(3, *x.shape, dtype=torch.float64)
    slopes = torch.func.vmap(lambda v: torch.func.jvp(loss, (x.detach(),), (v,))[1])(directions)
    torch.testing.assert_close(slopes, (directions * expected).sum((1, 2, 3)))


def test_pairs_of_tokens_are_of_one_sentence() -> None:
    layer, x = SynthesizerAttention(H * HEAD, H, "vanilla"), torch.randn(1, 4, H * HEAD)
    layout = TokenLayout.of_segments(torch.tensor([[1, 1, 2, 2]]))
    for options in ({"need_weights": True}, {"attn_bias": torch.zeros(4, 4)}):
        with pytest.raises(ValueError, match="one sentence per row"):
            layer(x, layout, **options)
    # The longest sentence counts, not the row.
    assert SynthesizerAttention(H * HEAD, H, "dense", 2)(x, layout).shape == x.shape
    with pytest.raises(ValueError, match="3 slots"):
        SynthesizerAttention(H * HEAD, H, "dense", 2)(x, TokenLayout.of_segments(torch.tensor([[1, 1, 1, 2]])))


@pytest.mark.parametrize("name", ["random", "dense", "factorized_dense", "vanilla", "random+vanilla", "dense+vanilla"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own_value", [False, True])
@pytest.mark.parametrize("short_row", [0, 40])
def test_leaving_padding_out_changes_nothing(
    name: str, kind: str, own_value: bool, short_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("synthetic_attention.layout._SHORT_ROW", short_row)
    layer = SynthesizerAttention(H * HEAD, H, name, N).double()
    x, v, g = (torch.randn(B, N, H * HEAD, dtype=torch.float64, requires_grad=True) for _ in range(3))
    # Of random, only the values see the input.
    inputs = [v] if own_value and name == "random" else [x, v] if own_value else [x]
    layout, results = TokenLayout.of(a_mask(kind), x), []
    for chosen in (layout, layout.padded):
        assert (chosen.real_tokens is not None) == (chosen is layout)
        y = layer(x, chosen, value=v if own_value else None)
        results.append([y, *torch.autograd.grad(y, [*inputs, *layer.parameters()], g)])
    for unpadded, padded in zip(*results, strict=True):
        torch.testing.assert_close(unpadded, padded)


@pytest.mark.parametrize("length", [40, 140])
def test_a_compiled_layer_takes_the_layout_of_a_model(length: int) -> None:
    """One graph for any number of real tokens: it computes the padding."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    layer = SynthesizerAttention(H * HEAD, H, "random", length)
    compiled, x = torch.compile(layer, fullgraph=True, backend="eager"), torch.randn(B, length, H * HEAD)
    for padding in (length // 8, length // 4):
        mask = torch.ones(B, length)
        mask[:, -padding:] = 0
        layout = TokenLayout.of(mask, x)
        assert layout.real_tokens
        torch.testing.assert_close(compiled(x, layout), layer(x, layout))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
