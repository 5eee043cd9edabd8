"""The oracle itself, against the paper's worked points and against torch where torch has the same thing."""

import math

import pytest
import torch
from torch import nn

from synthetic_attention import reference

F64 = torch.float64


def test_vanilla_is_scaled_dot_product_attention():
    x, w_q, w_k = torch.randn(7, 5, dtype=F64), torch.randn(5, 3, dtype=F64), torch.randn(5, 3, dtype=F64)
    expected = torch.stack([torch.stack([(a @ w_q) @ (b @ w_k) / math.sqrt(3) for b in x]) for a in x])
    torch.testing.assert_close(reference.vanilla(x, w_q, w_k), expected)


def test_dense_row_is_a_two_layer_network_of_its_own_token():
    x = torch.randn(5, 7, dtype=F64)
    first, second = nn.Linear(7, 3, dtype=F64), nn.Linear(3, 11, dtype=F64)
    network = nn.Sequential(first, nn.ReLU(), second)
    logits = reference.dense(x, first.weight.T, second.weight.T, first.bias, second.bias)
    torch.testing.assert_close(logits, network(x)[:, :5])


@pytest.mark.parametrize("length", [6, 5])
def test_outer_tiles_one_factor_and_repeats_the_other(length):
    a, b = torch.tensor([[1.0, 10.0, 100.0]]), torch.tensor([[2.0, 3.0]])
    expected = torch.tensor([[2.0, 20.0, 200.0, 3.0, 30.0, 300.0]])
    assert torch.equal(reference.outer(a, b, length), expected[:, :length])


def test_factorized_dense_shares_its_hidden_layer():
    x, w_1 = torch.randn(5, 7, dtype=F64), torch.randn(7, 3, dtype=F64)
    w_a, w_b = torch.randn(3, 2, dtype=F64), torch.randn(3, 3, dtype=F64)
    expected = torch.stack([torch.outer(h @ w_b, h @ w_a).flatten()[:5] for h in torch.relu(x @ w_1)])
    torch.testing.assert_close(reference.factorized_dense(x, w_1, w_a, w_b), expected)


def test_masked_softmax_ignores_hidden_keys_and_gives_zeros_without_any():
    logits = torch.tensor([[1.0, 2.0, 900.0], [1.0, 2.0, 3.0]])
    weights = reference.masked_softmax(logits, torch.tensor([[True, True, False], [False, False, False]]))
    torch.testing.assert_close(weights[0, :2], torch.softmax(logits[0, :2], -1))
    assert weights[0, 2] == 0
    assert torch.equal(weights[1], torch.zeros(3))


def test_attend_is_scaled_dot_product_attention():
    q, k, v = (torch.randn(2, 3, 5, 7, dtype=F64) for _ in range(3))
    bias = torch.randn(3, 5, 5, dtype=F64)
    out = reference.attend(q @ k.mT, v, attn_bias=bias)
    torch.testing.assert_close(out, nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0))


def test_synthesizer_is_multi_head_attention():
    mha = nn.MultiheadAttention(6, 2, batch_first=True, dtype=F64)
    nn.init.normal_(mha.in_proj_bias)
    x = torch.randn(5, 6, dtype=F64)
    (w_q, w_k, w_v), (b_q, b_k, b_v) = mha.in_proj_weight.chunk(3), mha.in_proj_bias.chunk(3)
    heads = [
        lambda x, h=slice(3 * h, 3 * h + 3): reference.vanilla(x, w_q[h].T, w_k[h].T, b_q[h], b_k[h]) for h in range(2)
    ]
    out = reference.synthesizer(x, heads, w_v.T, mha.out_proj.weight.T, b_v, mha.out_proj.bias)
    torch.testing.assert_close(out, mha(x[None], x[None], x[None], need_weights=False)[0][0])
