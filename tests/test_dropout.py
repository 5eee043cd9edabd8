"""The fast dropout against what dropout is."""

from __future__ import annotations

import pytest
import torch

from synthetic_attention.kernels.dropout import add_dropout, dropout


@pytest.mark.parametrize("shape", [(3, 5, 7), (1,), (0, 4), (11, 13)])
@pytest.mark.parametrize("p", [0.0, 0.001, 0.2, 0.5])
def test_elements_are_zero_or_scaled_and_gradients_follow(shape: tuple[int, ...], p: float) -> None:
    x = (torch.rand(shape, dtype=torch.float64) + 1).requires_grad_()
    y = dropout(x, p, training=True)
    scales = (y / x).detach()[y != 0]
    if scales.numel():
        torch.testing.assert_close(scales, scales[0].expand_as(scales))
        # 1 / (1 − p), with p of this call at most one step of 8 bits off.
        assert abs(1 - 1 / scales[0].item() - p) < 2**-8
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (y / x).detach())


@pytest.mark.parametrize("p", [0.001, 0.1, 0.9])
def test_rate_is_p_and_nothing_is_lost_on_average(p: float) -> None:
    torch.manual_seed(5)
    calls, count = 600, 1003
    outputs = torch.stack([dropout(torch.ones(count, dtype=torch.float64), p, training=True) for _ in range(calls)])
    # The rate of a call is itself drawn, at most 2⁻⁸ apart.
    deviation = (p * (1 - p) / (calls * count) + 2**-18 / calls) ** 0.5
    assert abs((outputs == 0).double().mean().item() - p) < 5 * deviation
    assert abs(outputs.mean().item() - 1) < 5 * deviation / (1 - p)


def test_elements_that_share_a_random_number_are_independent() -> None:
    torch.manual_seed(5)
    p, count = 0.25, 400_003
    dropped = (dropout(torch.ones(count), p, training=True) == 0).double()
    for distance in range(1, 9):
        both = (dropped[:-distance] * dropped[distance:]).mean().item()
        assert abs(both - p * p) < 5 * (p * p * (1 - p * p) / count) ** 0.5


def test_seed_repeats_it_and_evaluation_is_the_identity() -> None:
    x = torch.randn(17, 19)
    torch.manual_seed(3)
    first = dropout(x, 0.3, training=True)
    other = dropout(x, 0.3, training=True)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.3, training=True), first)
    assert not torch.equal(other, first)
    assert dropout(x, 0.3, training=False) is x
    x.requires_grad_()
    y = dropout(x.t(), 0.5, training=True)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0] != 0, y.t() != 0)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("training", [True, False])
def test_added_to_a_residual_it_is_the_same(p: float, training: bool) -> None:
    x, residual = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True)
    torch.manual_seed(3)
    fused = add_dropout(residual, x, p, training)
    torch.manual_seed(3)
    apart = residual + dropout(x, p, training)
    torch.testing.assert_close(fused, apart)
    upstream = torch.randn(7, 5)
    ours = torch.autograd.grad(fused, (residual, x), upstream)
    torch.testing.assert_close(ours, torch.autograd.grad(apart, (residual, x), upstream))
