"""Other derivatives than one in reverse mode: torch.func, forward mode, second derivatives, vmap."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from layers import drawn_layer
from synthetic_attention import SynthesizerAttention

B, T, D, H, N = 2, 5, 8, 2, 6
# One for each way of computing attention.
NAMES = ["random", "factorized_random", "factorized_dense", "random+vanilla", "dense"]
MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0]])
# PyTorch says so where it computes vanilla attention's derivative step by step.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")


def make(name: str) -> SynthesizerAttention:
    return drawn_layer(D, H, name, N)


def some(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("mask", [None, MASK], ids=["full", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_forward_mode(name, mask):
    layer, x, direction, step = make(name), some(B, T, D), some(B, T, D), 1e-6
    _, tangent = jvp(lambda y: layer(y, mask), (x,), (direction,))
    with torch.no_grad():
        expected = (layer(x + step * direction, mask) - layer(x - step * direction, mask)) / (2 * step)
    torch.testing.assert_close(tangent, expected, atol=1e-5, rtol=1e-6)
    with forward_ad.dual_level(), torch.no_grad():
        y = layer(forward_ad.make_dual(x, direction), mask)
        torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, tangent)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_each_example(name, padded):
    layer, x = make(name), some(B, T, D)
    parameters = dict(layer.named_parameters())

    def loss(parameters, alone, real):
        return functional_call(layer, parameters, (alone[None], real[None] if padded else None)).square().sum()

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, MASK)
    for b in range(B):
        layer.zero_grad()
        layer(x[b : b + 1], MASK[b : b + 1] if padded else None).square().sum().backward()
        for key, parameter in parameters.items():
            torch.testing.assert_close(found[key][b], parameter.grad, msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_in_training(name):
    layer, x, found = SynthesizerAttention(D, H, name, N, dropout=0.5).double(), some(B, T, D), []
    parameters = dict(layer.named_parameters())
    for transformed in (True, False):
        torch.manual_seed(0)
        if transformed:
            of_all = grad(lambda values: functional_call(layer, values, (x, MASK)).square().sum())(parameters)
            found.append(list(of_all.values()))
        else:
            with sdpa_kernel(SDPBackend.MATH):
                found.append(torch.autograd.grad(layer(x, MASK).square().sum(), list(parameters.values())))
    torch.testing.assert_close(*map(list, found))


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(name):
    layer, x = make(name), some(1, 3, D).requires_grad_()
    (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    # PyTorch has words of its own for its own kernel.
    with pytest.raises(RuntimeError, match=r"second derivative of attention.*SDPBackend.MATH|is not implemented"):
        first.sum().backward()
    with sdpa_kernel(SDPBackend.MATH):
        (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, hessian(lambda x: layer(x).square().sum())(x.detach()).sum((0, 1, 2)))
