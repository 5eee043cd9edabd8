"""The four forms of logits: what matrix each stands for, how they mix, and what they refuse."""

import pytest
import torch

from synthetic_attention import InnerLogits, MixedLogits, OuterLogits, SharedLogits, reference

B, H, T, S, K = 2, 3, 5, 7, 11


def shared():
    return SharedLogits(torch.randn(H, T, S))


def inner(key_batch=B, *, bias=True):
    return InnerLogits(torch.randn(B, H, T, K), torch.randn(key_batch, H, S, K), torch.randn(H, S) if bias else None)


def outer(a=3, b=3):
    return OuterLogits(torch.randn(B, H, T, a), torch.randn(B, H, T, b))


def test_shared_is_its_scores():
    scores = torch.randn(H, T, S)
    assert torch.equal(SharedLogits(scores).dense(), scores)
    assert torch.equal(SharedLogits(scores).dense(3), scores[..., :3])


@pytest.mark.parametrize("key_batch", [1, B])
@pytest.mark.parametrize("bias", [True, False])
def test_inner_is_a_product(key_batch, bias):
    logits = inner(key_batch, bias=bias)
    expected = torch.einsum("bhtk,bhsk->bhts", logits.query, logits.key.expand(B, -1, -1, -1))
    if bias:
        expected = expected + logits.bias[None, :, None, :]
    torch.testing.assert_close(logits.dense(), expected)
    torch.testing.assert_close(logits.dense(3), expected[..., :3])


@pytest.mark.parametrize(("a", "b"), [(3, 3), (2, 5), (7, 1)])
def test_outer_tiles_one_factor_and_repeats_the_other(a, b):
    logits = outer(a, b)
    dense = logits.dense(S)
    assert dense.shape == (B, H, T, S)
    for n in range(B):
        for h in range(H):
            torch.testing.assert_close(dense[n, h], reference.outer(logits.tiled[n, h], logits.repeated[n, h], S))


def test_outer_has_all_its_columns_by_default():
    assert outer(3, 5).dense().shape[-1] == 15


def test_mixed_is_the_weighted_sum_per_head():
    terms = [shared(), inner(1), outer()]
    weights = torch.randn(3, H)
    expected = sum(weights[i][:, None, None] * terms[i].dense(S) for i in range(3))
    torch.testing.assert_close(MixedLogits(terms, weights).dense(S), expected)


def test_mixed_without_weights_is_the_plain_sum():
    terms = [shared(), inner(), shared()]
    torch.testing.assert_close(MixedLogits(terms).dense(), sum(term.dense() for term in terms))


def test_mixtures_nest():
    a, b, c = shared(), inner(), outer()
    inside, outside = torch.randn(2, H), torch.randn(2, H)
    nested = MixedLogits([MixedLogits([a, b], inside), c], outside)
    w = torch.stack([outside[0] * inside[0], outside[0] * inside[1], outside[1]])
    torch.testing.assert_close(nested.dense(S), MixedLogits([a, b, c], w).dense(S))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SharedLogits(torch.randn(T, S)), r"\(5, 7\).*\(H, T, S\)"),
        (lambda: InnerLogits(torch.randn(H, T, K), torch.randn(B, H, S, K)), r"\(3, 5, 11\).*\(B, H, T, K\)"),
        (lambda: InnerLogits(torch.randn(B, H, T, K), torch.randn(B, H, S, K + 1)), r"\(2, 3, 7, 12\)"),
        (lambda: InnerLogits(torch.randn(B, H, T, K), torch.randn(3, H, S, K)), r"\(3, 3, 7, 11\)"),
        (lambda: InnerLogits(torch.randn(B, H, T, K), torch.randn(B, H, S, K), torch.randn(S)), r"\(7,\)"),
        (lambda: OuterLogits(torch.randn(B, H, T, 2), torch.randn(B, H, S, 3)), r"\(2, 3, 7, 3\)"),
        (lambda: outer(2, 3).dense(7), r"7.*6"),
        (lambda: MixedLogits([]), "at least one"),
        (lambda: MixedLogits([shared(), inner()], torch.randn(3, H)), r"\(3, 3\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
