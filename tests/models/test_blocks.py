"""The parts of a layer against PyTorch's and T5's."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from synthetic_attention import SynthesizerAttention, TokenLayout
from synthetic_attention.models import SynthesizerConfig
from synthetic_attention.models.blocks import MLP, CrossAttention, SynthesizerBlock
from synthetic_attention.models.positions import SinusoidalPositions


def _copy_cross_attention(cross: CrossAttention, mha: nn.MultiheadAttention) -> None:
    width = mha.embed_dim
    with torch.no_grad():
        weights, biases = mha.in_proj_weight.split(width), mha.in_proj_bias.split(width)
        for ours, weight, bias in zip((cross.q_proj, cross.k_proj, cross.v_proj), weights, biases, strict=True):
            ours.weight.copy_(weight)
            ours.bias.copy_(bias)
        cross.out_proj.load_state_dict(mha.out_proj.state_dict())


@pytest.mark.parametrize("pre_norm", [True, False])
def test_a_vanilla_block_is_a_transformer_decoder_layer(pre_norm: bool, tiny_config: Callable) -> None:
    config: SynthesizerConfig = tiny_config(pre_norm=pre_norm, synthesizer="vanilla")
    theirs = nn.TransformerDecoderLayer(
        22, 2, 31, norm_first=pre_norm, batch_first=True, layer_norm_eps=config.layer_norm_epsilon
    ).eval()
    for name, parameter in theirs.named_parameters():
        if "norm" in name or "bias" in name:
            nn.init.normal_(parameter)
    ours = SynthesizerBlock(config, "vanilla", 0, is_causal=True, has_cross_attention=True)
    ours.self_attn = SynthesizerAttention.from_multihead_attention(theirs.self_attn)
    _copy_cross_attention(ours.cross_attn, theirs.multihead_attn)
    ours.mlp.up_proj.load_state_dict(theirs.linear1.state_dict())
    ours.mlp.down_proj.load_state_dict(theirs.linear2.state_dict())
    norms = (ours.self_attn_norm, ours.cross_attn_norm, ours.mlp_norm)
    for mine, other in zip(norms, (theirs.norm1, theirs.norm2, theirs.norm3), strict=True):
        mine.load_state_dict(other.state_dict())
    ours.eval()

    x, memory = torch.randn(3, 5, 22), torch.randn(3, 7, 22)
    mask = torch.tensor([[1] * 7, [0] * 2 + [1] * 5, [1] * 4 + [0] * 3]).bool()
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    expected = theirs(x, memory, tgt_mask=causal, memory_key_padding_mask=torch.where(mask, 0.0, -torch.inf))
    actual, _, _ = ours(x, memory, layout=TokenLayout.of(None, x), source=TokenLayout.of(mask, memory).padded)
    torch.testing.assert_close(actual, expected)


def test_cross_attention_weights_are_its_own(tiny_config: Callable) -> None:
    cross = CrossAttention(tiny_config(), 0)
    x, memory = torch.randn(3, 5, 22), torch.randn(3, 7, 22)
    mask = torch.tensor([[1] * 7, [0] * 2 + [1] * 5, [0] * 7]).bool()
    y, weights = cross(x, memory, TokenLayout.of(None, x), TokenLayout.of(mask, memory).padded, need_weights=True)
    assert weights.shape == (3, 2, 5, 7)
    value = cross.v_proj(memory).unflatten(-1, (2, 11)).transpose(1, 2)
    torch.testing.assert_close(y, cross.out_proj((weights @ value).transpose(1, 2).flatten(2)))
    torch.testing.assert_close(y[2], cross.out_proj.bias.expand(5, -1))


def test_a_gated_feed_forward_layer(tiny_config: Callable) -> None:
    layer = MLP(tiny_config(feed_forward_proj="gated-gelu", use_bias=False))
    x = torch.randn(3, 5, 22)
    gate = nn.functional.gelu(x @ layer.gate_proj.weight.T, approximate="tanh")
    torch.testing.assert_close(layer(x), (gate * (x @ layer.up_proj.weight.T)) @ layer.down_proj.weight.T)


def test_sinusoids_are_the_formula() -> None:
    table = SinusoidalPositions(6)(torch.arange(300))
    n, i = 257, 2
    angle = n / 10000 ** (2 * i / 6)
    assert table.shape == (300, 6)
    assert table[n, [i, 3 + i]].tolist() == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-5)
