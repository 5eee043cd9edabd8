"""Projections to heads and back; matrix products by the fastest library for device, rows and vendor of the processor.

PyTorch multiplies float32 matrices on a CPU with MKL, which does not use AVX-512 on processors of AMD; oneDNN, which
PyTorch contains for other data types, does. On an AMD EPYC (Zen 5) it is twice as fast (docs/performance.md).
`torch.backends.mkldnn.set_flags(False)` turns it off.

Shape legend: B batch, H heads, T tokens of a row, n real tokens, K width of a head, C features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.weak import WeakTensorKeyDictionary

from ..layout import TokenLayout, is_transformed
from .blocks import wide, without_autocast

# Smaller products take less time than to call oneDNN: multiplications, and for few rows the size of the weights.
_LEAST_PRODUCTS, _LEAST_WEIGHTS = 2**22, 2**18
# The fewest rows, and the smallest weights, for which another order of the weights pays within some 20 calls.
_PACKED_ROWS, _PACKED_SIZE = 4, 2**18

# For each weight its fingerprint, and a copy in oneDNN's order.
_COPIES: Any = WeakTensorKeyDictionary()


def linear(module: Any, x: Tensor) -> Tensor:
    """module(x), (…, in) to (…, out), for an `nn.Linear` or its replacement."""
    if torch.compiler.is_compiling() or not x.numel():
        return module(x)
    if x.dim() == 3 and x.device.type != "cpu" and x.stride(1) == 1 and x.shape[-1] > 1:
        # Laid out by feature. As a matrix it is multiplied, and its gradient written, in this layout without a copy.
        return module(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    if x.device.type != "cpu" or not is_plain(module) or not is_fast(x, module.weight):
        return module(x)
    rows = x.reshape(-1, x.shape[-1])
    return onednn_linear(rows, module.weight, module.bias).view(*x.shape[:-1], len(module.weight))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, H·K) to (B, H, T, K)."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def project_by_feature(module: Any, tokens: Tensor, layout: TokenLayout, heads: int) -> Tensor:
    """The values (B, H, T, K) of tokens as in `layout.pack`, laid out as (H, K, B, T) if the projection is plain."""
    if not is_plain(module):
        return split_heads(layout.pad(module(tokens)), heads)
    weight, bias, real = module.weight, module.bias, layout.real_tokens
    rows = tokens.reshape(-1, tokens.shape[-1])
    columns = rows.t()
    if is_fast(weight.detach(), rows):
        values = onednn_linear(weight, rows)
        values = values if bias is None else values + bias[:, None]
    elif bias is None or tokens.is_meta or torch.is_autocast_enabled(tokens.device.type):
        values = weight @ columns
        values = values if bias is None else values + bias[:, None].to(values.dtype)
    else:
        values = torch.addmm(bias[:, None], weight, columns)
    if real is not None:
        values = real.put_columns(values)
    return values.view(heads, weight.shape[0] // heads, *layout.aligned.shape).permute(2, 0, 3, 1)


def join_heads(y: Tensor, layout: TokenLayout) -> Tensor:
    """(B, H, T, K) to the input of the output projection, (1, n, H·K) or (B, T, H·K) as in `layout.pack`."""
    y = y.transpose(1, 2).flatten(2)
    if (real := layout.real_tokens) is None:
        return y
    # The kernel for shared logits writes feature by feature.
    by_feature = y.stride(1) == 1 and y.shape[-1] > 1
    return real.take_columns(y.permute(2, 0, 1)).t()[None] if by_feature else real.take(y, aligned=True)


def is_plain(module: nn.Module) -> bool:
    """Whether a call of `module` is x Wᵀ + b and nothing else, so that W and b may be used in another way.

    It is not with a hook, a parametrization, an adapter, a quantized or distributed weight, or a `forward` of its own
    (as accelerate sets, to bring weights from elsewhere).
    """
    return is_unchanged(module, nn.Linear) and type(module.weight) in (nn.Parameter, Tensor)


def is_unchanged(module: nn.Module | None, *kinds: type) -> bool:
    """Whether a module is of exactly one of these classes, and a call of it runs their `forward` and nothing else."""
    # Global hooks; compiled code ignores them.
    if module is None or (not torch.compiler.is_compiling() and _has_any_global_hook()):
        return False
    return type(module) in kinds and not any(_hooks(module)) and "forward" not in module.__dict__


def has_other_code(module: nn.Module) -> bool:
    """Whether hooks, compiled code or another `forward`, which may look at rows, run in a module or in a part of it.

    Hooks of PyTorch's own, as of FSDP, do not count.
    """
    if _has_any_global_hook():
        return True
    for part in module.modules():
        if part._compiled_call_impl is not None or "forward" in part.__dict__:
            return True
        hooks = (hook for each in _hooks(part) for hook in each.values())
        if any(not (getattr(hook, "__module__", None) or "").startswith("torch.distributed") for hook in hooks):
            return True
    return False


def _hooks(module: nn.Module) -> tuple[dict[int, Any], ...]:
    return module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks


def packed_linear(weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor] | None:
    """x Wᵀ + b, (n, in) to (n, out), for many calls in inference: W is copied into the order that oneDNN reads.

    None where that is not possible, or does not pay: for few rows n, and for small weights, as measured on an AMD EPYC.
    The copy is kept as long as W, and made anew when W changes.
    """
    if rows < _PACKED_ROWS or weight.numel() < _PACKED_SIZE:
        return None
    has_onednn = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or not has_onednn:
        return None
    copy = _packed(weight)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, copy, bias, "none", [], "")


def _packed(weight: Tensor) -> Tensor:
    """W in oneDNN's order."""
    data, found = weight.detach(), _COPIES.get(weight)
    # What is made under `torch.inference_mode()` has no version: it is copied in every call.
    key = None if weight.is_inference() else fingerprint(data)
    if found is not None and found[0] == key:
        return cast(Tensor, found[1])
    copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(data, None)
    if key is not None:
        _COPIES[weight] = key, copy
    return copy


def fingerprint(parameter: Tensor) -> tuple[int, int, torch.dtype, float]:
    """What changes when a parameter changes: autograd's version, and a weighted sum, as `.data` skips the version."""
    # In float32 or wider: a sum in float16 overflows, and one in bfloat16 does not see small changes.
    dtype = wide(parameter)
    rows = parameter.to(dtype).reshape(-1, parameter.shape[-1])
    with without_autocast("cpu"):
        sums = product(_numbers(rows.shape[-1], 1.7, dtype)[None], rows.t())[0]
        total = float(sums.double() @ _numbers(sums.shape[0], 2.3, torch.float64))
    # An infinite total would hide all other changes. (Each time another NaN: tuples take the same object for equal.)
    return parameter.data_ptr(), parameter._version, parameter.dtype, total if math.isfinite(total) else float("nan")


@lru_cache(maxsize=64)
def _numbers(count: int, step: float, dtype: torch.dtype) -> Tensor:
    """(count,) numbers, all different, so that a weighted sum sees the order; another step gives others."""
    return torch.cos(step * torch.arange(count, dtype=torch.float64, device="cpu")).to(dtype)


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
    if _are_fast(a, b):
        return torch.stack([product(x, y) for x, y in zip(a, b, strict=True)])
    return torch.bmm(a, b)


def write_product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a @ b, batches of matrices, where out may be wider."""
    if _are_fast(a, b):
        for x, y, target in zip(a, b, out, strict=True):
            target.copy_(product(x, y))
    elif out.dtype == a.dtype:
        torch.bmm(a, b, out=out)
    else:
        out.copy_(torch.bmm(a, b))


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
