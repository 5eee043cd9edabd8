"""The fast dropout against what dropout is."""

from __future__ import annotations

import pytest
import torch

from synthetic_attention.models.dropout import dropout


@pytest.mark.parametrize("shape", [(3, 5, 7), (1,), (0, 4), (11, 13)])
@pytest.mark.parametrize("p", [0.0, 0.2, 0.5])
def test_elements_are_zero_or_scaled_and_gradients_follow(shape: tuple[int, ...], p: float) -> None:
    x = (torch.rand(shape, dtype=torch.float64) + 1).requires_grad_()
    y = dropout(x, p, training=True)
    kept = y != 0
    torch.testing.assert_close(y, torch.where(kept, x / (1 - p), torch.zeros_like(x)), rtol=2**-14, atol=0)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, kept.double() / (1 - p), rtol=2**-14, atol=0)


@pytest.mark.parametrize("p", [0.1, 0.2, 0.9])
def test_rate_is_p_and_elements_are_independent(p: float) -> None:
    count = 400_003
    dropped = (dropout(torch.ones(count), p, training=True) == 0).double()
    deviation = (p * (1 - p) / count) ** 0.5
    assert abs(dropped.mean().item() - p) < 5 * deviation
    # The elements that share a random number are neighbours.
    for distance in (1, 2, 3, 4):
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


def test_not_contiguous_input() -> None:
    x = torch.randn(6, 5, requires_grad=True)
    y = dropout(x.t(), 0.5, training=True)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, y.t() != 0)
