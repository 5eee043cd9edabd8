"""SynthesizerMultiheadAttention in the place of `nn.MultiheadAttention`: alone, and in `nn.TransformerEncoder`."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synthetic_attention import SynthesizerMultiheadAttention

B, L, E, H = 3, 7, 12, 2
CAUSAL = torch.ones(L, L, dtype=torch.bool).triu(1)
PADDED = torch.tensor([[0] * L, [0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 1, 0]], dtype=torch.bool)
PER_HEAD = torch.randn(B * H, L, L, generator=torch.Generator().manual_seed(0))


def in_place_of(mha: nn.MultiheadAttention, synthesizer: str = "random+vanilla") -> SynthesizerMultiheadAttention:
    for bias in (mha.in_proj_bias, mha.out_proj.bias):
        nn.init.normal_(bias)
    return SynthesizerMultiheadAttention.from_multihead_attention(mha, synthesizer, L)


def check(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"key_padding_mask": PADDED},
        {"key_padding_mask": torch.zeros(B, L).masked_fill(PADDED, -torch.inf), "attn_mask": PER_HEAD},
        {"key_padding_mask": PADDED, "attn_mask": CAUSAL},
        {"attn_mask": CAUSAL, "is_causal": True},
    ],
    ids=["none", "padding", "floats", "padding and causal", "is causal"],
)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("synthesizer", ["vanilla", "random+vanilla"])
def test_is_multihead_attention(synthesizer: str, batch_first: bool, masks: dict[str, Any]) -> None:
    mha = nn.MultiheadAttention(E, H, batch_first=batch_first)
    layer, x = in_place_of(mha, synthesizer), torch.randn(B, L, E)
    q = x if batch_first else x.transpose(0, 1)
    real = (masks.get("key_padding_mask", torch.zeros(B, L)) == 0).float()
    of_output = real[..., None] if batch_first else real.t()[..., None]
    for average, of_weights in ((True, real[..., None]), (False, real[:, None, :, None])):
        (out, weights), (y, w) = (m(q, q, 2 * q, average_attn_weights=average, **masks) for m in (mha, layer))
        # A token of padding is zeros here.
        check(y, out * of_output)
        check(w, weights * of_weights)
    y, none = layer(q, q, 2 * q, need_weights=False, **masks)
    check(y, out * of_output)
    assert none is None


def test_one_sequence() -> None:
    mha, x = nn.MultiheadAttention(E, H), torch.randn(L, E)
    layer, real = in_place_of(mha), ~PADDED[1]
    for masks in ({"attn_mask": PER_HEAD[:H]}, {"key_padding_mask": PADDED[1]}):
        (out, weights), (y, w) = (m(x, x, x, **masks) for m in (mha, layer))
        check(y[real], out[real])
        check(w[real], weights[real])


@pytest.mark.parametrize(
    "masks", [{}, {"src_key_padding_mask": PADDED}, {"mask": CAUSAL}], ids=["", "padded", "causal"]
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_surgery_of_an_encoder(batch_first: bool, masks: dict[str, Any]) -> None:
    """It computes what it did, in training and in inference, where PyTorch's fused path is for its own layers only."""
    block = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, batch_first=batch_first)
    encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=batch_first)
    changed, x = copy.deepcopy(encoder), torch.randn(B, L, E)
    for before, after in zip(encoder.layers, changed.layers, strict=True):
        after.self_attn = in_place_of(before.self_attn)
    x = x if batch_first else x.transpose(0, 1)
    real = ~masks.get("src_key_padding_mask", torch.zeros(B, L, dtype=torch.bool))
    real = real if batch_first else real.t()
    for training in (True, False):
        with torch.set_grad_enabled(training):
            want, y = encoder.train(training)(x, **masks), changed.train(training)(x, **masks)
        torch.testing.assert_close(y[real], want[real], atol=1e-5, rtol=1e-5)
        if training:
            y[real].square().sum().backward()
    assert all(parameter.grad is not None for parameter in changed.parameters())
    check(pickle.loads(pickle.dumps(changed))(x, **masks), changed(x, **masks))


def test_what_it_is_not() -> None:
    layer, x = SynthesizerMultiheadAttention(E, H, synthesizer="random", max_length=L), torch.randn(L, B, E)
    nested = torch.nested.as_nested_tensor([x[0], x[1]], layout=torch.jagged)
    for call, message in (
        (lambda: layer(x.requires_grad_(), x.detach(), x), "self-attention"),
        (lambda: torch.func.vmap(layer)(x[None], x[None], x[None]), "self-attention"),
        (lambda: layer(x[:B], x[:B].transpose(0, 1), x[:B]), "self-attention"),
        (lambda: layer(x, x, x, key_padding_mask=torch.ones(B, L, dtype=torch.long)), "int64"),
        (lambda: layer(nested, nested, nested), "nested"),
        (lambda: layer(x, x, x, attn_mask=torch.zeros(5, L, L)), r"\(5, 7, 7\).*\(6, 7, 7\)"),
        (lambda: layer(x, x, x, key_padding_mask=torch.zeros(B, L - 1)), "True at padding"),
        (lambda: in_place_of(layer), "got a SynthesizerMultiheadAttention"),
        (lambda: SynthesizerMultiheadAttention(E, H, kdim=5), "kdim=5"),
        (lambda: SynthesizerMultiheadAttention(E, H), "max_length"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
