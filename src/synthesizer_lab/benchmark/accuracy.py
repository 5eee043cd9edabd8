"""Errors of a layer's output and gradients, against the equation in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isqrt

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .cases import Case
from .harness import Contender, Inputs

# Bytes of one (B, H, L, L) in float64, of which several are needed at a time.
_MATRICES = 2**31
# An error may be this many times that of the equation in the same dtype, plus the resolution of the dtype: errors of
# a few numbers, such as the weights of a mixture, can be small by chance.
_FACTOR, _RESOLUTION = 2, 1e-5
# Smaller gradients, relative to the largest, are rounding errors around zero, such as that of vanilla's key bias.
_ZERO = 1e-9


@dataclass(frozen=True)
class Accuracy:
    """The largest relative error in the Euclidean norm, and whether all errors are small enough."""

    error: float
    is_accepted: bool


def reduced(case: Case) -> Case:
    """The case with fewer examples, or with one shorter one, if float64 matrices of all would be too large."""
    length = min(case.length, isqrt(_MATRICES // (8 * case.heads)))
    return replace(case, length=length, batch=max(1, min(case.batch, _MATRICES // (8 * case.heads * length**2))))


def check(layer: Contender, case: Case) -> Accuracy:
    """Compare output and gradients with the equation through whole matrices, in float64 and in the dtype of the layer.

    The layer is in float64 afterwards.
    """
    inputs = case.inputs()
    fast = _gradients(layer, inputs)
    with sdpa_kernel(SDPBackend.MATH):
        eager = _gradients(layer, inputs)
        layer.module.double()
        x, mask, gradient = inputs
        exact = _gradients(layer, (x.detach().double().requires_grad_(), mask, gradient.double()))
    resolution = max(_RESOLUTION, torch.finfo(case.dtype).eps)
    allowed = [_FACTOR * error + resolution for error in _errors(eager, exact)]
    errors = list(_errors(fast, exact))
    return Accuracy(max(errors), all(error <= most for error, most in zip(errors, allowed, strict=True)))


def _gradients(layer: Contender, inputs: Inputs) -> list[Tensor]:
    """The output and all gradients."""
    x, mask, gradient = inputs
    y = layer.call(x, mask)
    parameters = [p for p in layer.module.parameters() if p.requires_grad]
    return [y.detach(), *torch.autograd.grad(y, [x, *parameters], gradient)]


def _errors(got: list[Tensor], exact: list[Tensor]) -> Iterator[float]:
    zero = _ZERO * max(float(each.norm()) for each in exact)
    for a, b in zip(got, exact, strict=True):
        if (norm := float(b.norm())) > zero:
            yield float((a - b).norm()) / norm
