"""The fused loss against the reference."""

from collections.abc import Callable

import pytest
import torch

from synthetic_attention.models.loss import cross_entropy, linear_cross_entropy


def _inputs(dtype: torch.dtype = torch.float64, rows: int = 523) -> tuple[torch.Tensor, ...]:
    hidden = torch.randn(rows, 7, dtype=dtype, requires_grad=True)
    weight = torch.randn(13, 7, dtype=dtype, requires_grad=True)
    labels = torch.randint(13, (rows,), dtype=torch.int32)
    labels[::3] = -100
    return hidden, weight, labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignore", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_loss_and_gradients_equal_the_reference(smoothing: float, ignore: bool, with_bias: bool) -> None:
    hidden, weight, labels = _inputs()
    bias = torch.randn(13, dtype=torch.float64, requires_grad=True) if with_bias else None
    inputs = (hidden, weight) if bias is None else (hidden, weight, bias)
    labels = labels if ignore else labels.clamp_min(0)
    fused = linear_cross_entropy(hidden, weight, labels, smoothing, bias)
    eager = cross_entropy(torch.nn.functional.linear(*inputs), labels, smoothing)
    torch.testing.assert_close(fused, eager)
    # An upstream gradient that is not 1.
    torch.testing.assert_close(torch.autograd.grad(fused * 0.3, inputs), torch.autograd.grad(eager * 0.3, inputs))


@pytest.mark.parametrize("offset", [-200.0, -40.0, 30.0, 80.0, 200.0])
def test_logits_far_from_zero_cost_no_precision(offset: float) -> None:
    hidden, weight, labels = _inputs(torch.float32, rows=300)
    # The last feature lifts all logits of a row; half of the rows stay where they are.
    with torch.no_grad():
        weight[:, -1] = 1
        hidden[::2, -1] = offset
    fused = linear_cross_entropy(hidden, weight, labels, 0.1)
    reference = cross_entropy(hidden.double() @ weight.double().T, labels, 0.1)
    torch.testing.assert_close(fused, reference.float(), rtol=1e-5, atol=0)
    ours = torch.autograd.grad(fused, (hidden, weight))
    theirs = torch.autograd.grad(reference, (hidden, weight))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-4 * max(1, abs(offset)))


def test_bfloat16_autocast_is_no_worse_than_the_reference() -> None:
    hidden, weight, labels = _inputs(torch.float32)
    exact = torch.autograd.grad(cross_entropy(hidden @ weight.T, labels, 0.1), (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        fused = linear_cross_entropy(hidden, weight, labels, 0.1)
        eager = cross_entropy(torch.nn.functional.linear(hidden, weight), labels, 0.1)
    assert fused.dtype == torch.float32
    ours = torch.autograd.grad(fused, (hidden, weight))
    theirs = torch.autograd.grad(eager, (hidden, weight))
    for mine, other, truth in zip(ours, theirs, exact, strict=True):
        assert (mine - truth).abs().max() <= 2 * (other - truth).abs().max()


def test_a_sum_over_many_tokens_does_not_overflow_in_half_precision() -> None:
    """Of 45,000 tokens with one label the sum of the gradients is over 65,504; their mean is not."""
    hidden = torch.full((45_000, 2), 2.0, dtype=torch.float16)
    weight = torch.zeros(8, 2, dtype=torch.float16, requires_grad=True)
    labels = torch.zeros(len(hidden), dtype=torch.long)
    (linear_cross_entropy(hidden, weight, labels) / len(labels)).backward()
    wide = weight.detach().float().requires_grad_()
    (cross_entropy(hidden.float() @ wide.T, labels) / len(labels)).backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float16
    torch.testing.assert_close(weight.grad.float(), wide.grad, atol=1e-2, rtol=1e-2)


def test_torch_func_takes_the_derivative_in_training(tiny_lm: Callable) -> None:
    model, ids = tiny_lm(dropout_rate=0.0).double().train(), torch.randint(4, 20, (2, 6))

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (), {"input_ids": ids, "labels": ids}).loss

    parameters = dict(model.named_parameters())
    found = torch.func.grad(loss)(parameters)
    model(ids, labels=ids).loss.backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(found[name], parameter.grad, msg=name)
