"""The linear layer for few rows against `F.linear`."""

import pytest
import torch
from torch.nn import functional as F

from synthetic_attention.linear import Linear, _swapped


@pytest.mark.parametrize("shape", [(11,), (3, 4), (5, 13), (63,), (4, 4, 4), (0,)])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_it_is_the_linear_layer(shape: tuple[int, ...], bias: bool) -> None:
    layer = Linear(7, 17, bias=bias)
    x = torch.randn(*shape, 7)
    y = layer(x)
    torch.testing.assert_close(y, F.linear(x, layer.weight, layer.bias))
    assert y.is_contiguous()
    torch.testing.assert_close(layer(x.mT.contiguous().mT if x.dim() > 1 else x), y)


def test_when_it_multiplies_the_other_way_round() -> None:
    layer, x = Linear(7, 17), torch.randn(2, 16, 7)
    with torch.no_grad():
        assert _swapped(x, layer.weight) == torch.backends.mkl.is_available()
        assert not _swapped(x[:, :5], layer.weight)
        assert not _swapped(x.expand(4, 2, 16, 7), layer.weight)
        assert not _swapped(x.double(), layer.weight.double())
        with torch.autocast("cpu"):
            assert not _swapped(x, layer.weight)
            assert layer(x).dtype == torch.bfloat16
    assert not _swapped(x, layer.weight)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
