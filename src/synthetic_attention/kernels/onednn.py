"""Products of float32 matrices by oneDNN, on CPUs on which that is faster than the library that PyTorch calls.

PyTorch multiplies float32 matrices on a CPU with MKL, which does not use AVX-512 on processors of AMD; oneDNN, which
PyTorch contains for other data types, does. On an AMD EPYC (Zen 5) it is twice as fast (docs/performance.md).
`torch.backends.mkldnn.set_flags(False)` turns it off.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..layout import is_transformed

# Smaller products take less time than to call oneDNN: multiplications, and for few rows the size of the weights.
_LEAST_PRODUCTS, _LEAST_WEIGHTS = 2**22, 2**18


@cache
def is_faster() -> bool:
    """Whether this is a processor of AMD with AVX-512, and PyTorch has both libraries."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    has_both = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    return has_both and "AMD" in str(found.get("cpu_name")) and bool(found.get("avx512_f"))


def is_fast(x: Tensor, weight: Tensor) -> bool:
    """Whether `onednn_linear` takes x (…, in) as a matrix and weight (out, in), and is faster than x @ weightᵀ."""
    # In the order of their costs: small models spend a good part of their time between operations.
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or type(x) is not Tensor:
        return False
    size, products = weight.numel(), x.numel() * weight.shape[0]
    if not products or (size < _LEAST_WEIGHTS and products < _LEAST_PRODUCTS) or x.shape[-1] != weight.shape[1]:
        return False
    if any(t.device.type != "cpu" or t.dtype != torch.float32 or t.layout != torch.strided for t in (x, weight)):
        return False
    is_off = torch.is_autocast_enabled("cpu") or is_transformed() or not torch.backends.mkldnn.enabled
    return is_faster() and not is_off


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear(x, weight, bias)` of a matrix x where `is_fast(x, weight)`, with all derivatives in reverse mode."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        result: Tensor = _Linear.apply(x, weight, bias)
        return result
    return _linear(x, weight, bias)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of two matrices, by the faster library."""
    if not is_fast(a, b.t()):
        return a @ b
    # oneDNN copies its first matrix into rows: if that is needed, the smaller one is the first.
    if not a.is_contiguous() and len(a) > b.shape[1]:
        return onednn_linear(b.t(), a).t()
    return onednn_linear(a, b.t())


def batch_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, batches of matrices, by the faster library; no derivatives, as in all functions below."""
    if not _are_fast(a, b):
        return torch.bmm(a, b)
    out = a.new_empty(len(a), a.shape[1], b.shape[2])
    write_product(a, b, out)
    return out


def write_product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a @ b, batches of matrices."""
    if _are_fast(a, b):
        for x, y, target in zip(a, b, out, strict=True):
            target.copy_(product(x, y))
    else:
        torch.bmm(a, b, out=out)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, batches of matrices, where total may be wider."""
    if _are_fast(a, b):
        for x, y, target in zip(a, b, total, strict=True):
            target += product(x, y)
    elif total.dtype == a.dtype:
        total.baddbmm_(a, b)
    else:
        total += torch.bmm(a, b)


def sum_with_product(start: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """start + a @ b, batches of matrices."""
    return batch_product(a, b).add_(start) if _are_fast(a, b) else torch.baddbmm(start, a, b)


def _are_fast(a: Tensor, b: Tensor) -> bool:
    """`is_fast` for a[i] @ b[i]. Of most batches the matrices are small, and their sizes say so."""
    return a.shape[1] * a.shape[2] * b.shape[2] >= _LEAST_PRODUCTS and is_fast(a[0], b[0].t())


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = None if bias is None else bias.reshape(-1).expand(len(weight)).contiguous()
    return torch.ops.mkldnn._linear_pointwise(_dense(x), _dense(weight), bias, "none", [], "")


def _dense(x: Tensor) -> Tensor:
    """The matrix, as rows or columns without gaps between them: with gaps oneDNN takes a thousand times as long."""
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_x, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        ctx.bias_shape = None if bias is None else bias.shape
        return _linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (of_x, of_weight, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        return (
            product(grad, weight) if of_x else None,
            product(grad.t(), x) if of_weight else None,
            grad.sum_to_size(ctx.bias_shape) if of_bias else None,
        )
