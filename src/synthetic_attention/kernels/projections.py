"""Projections in the memory layouts that are fast on a CPU, with the results of the modules.

Large float32 products are oneDNN's where that is faster than MKL (`onednn.py`). On other processors (measured on a
Xeon) MKL multiplies x Wᵀ with 12 to 63 rows, as PyTorch asks it to, more slowly than W xᵀ and the copy that puts the
result into order. And the kernel for shared logits multiplies values feature by feature.

Shape legend: B batch, H heads, T tokens of a row, n real tokens, K width of a head, C features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.weak import WeakTensorKeyDictionary

from ..layout import TokenLayout
from . import onednn
from .onednn import is_fast, onednn_linear
from .softmax_cache import fingerprint

# Rows for which MKL is slow.
_SLOW_ROWS = range(12, 64)
# The fewest rows, and the smallest weights, for which another order of the weights pays within some 20 calls.
_PACKED_ROWS, _PACKED_SIZE = 4, 2**18

# Of each weight a copy in oneDNN's order, with what tells whether the weight has changed since.
_COPIES: Any = WeakTensorKeyDictionary()


def linear(module: Any, x: Tensor) -> Tensor:
    """module(x), (…, in) to (…, out), for an `nn.Linear` or its replacement."""
    if torch.compiler.is_compiling() or not x.numel():
        return module(x)
    if x.dim() == 3 and x.device.type != "cpu" and x.stride(1) == 1 and x.shape[-1] > 1:
        # Laid out by feature. As a matrix it is multiplied, and its gradient written, in this layout without a copy.
        return module(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    if x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu") or not is_plain(module):
        return module(x)
    if is_fast(x, module.weight):
        rows = x.reshape(-1, x.shape[-1])
        return onednn_linear(rows, module.weight, module.bias).view(*x.shape[:-1], len(module.weight))
    if x.numel() // x.shape[-1] not in _SLOW_ROWS or onednn.is_faster():
        return module(x)
    weight, bias = module.weight, module.bias
    # The backward is that of the usual product.
    trains = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if trains or weight.dtype != x.dtype or not torch.backends.mkl.is_available():
        return module(x)
    columns = x.reshape(-1, x.shape[-1]).t()
    product = weight @ columns if bias is None else torch.addmm(bias[:, None], weight, columns)
    return product.t().contiguous().view(*x.shape[:-1], weight.shape[0])


def is_plain(module: nn.Module) -> bool:
    """Whether a call of `module` is x Wᵀ + b and nothing else, so that W and b may be used in another way.

    It is not with a hook, a parametrization, an adapter, a quantized or distributed weight, or a `forward` of its own
    (as accelerate sets, to bring weights from elsewhere).
    """
    return is_unchanged(module, nn.Linear) and type(module.weight) in (nn.Parameter, Tensor)


def is_unchanged(module: nn.Module | None, *kinds: type) -> bool:
    """Whether a module is of exactly one of these classes, and a call of it runs their `forward` and nothing else."""
    # Of all modules: compiled code has none of its own.
    if module is None or (not torch.compiler.is_compiling() and _has_any_global_hook()):
        return False
    has_hooks = (
        module._forward_pre_hooks or module._forward_hooks or module._backward_pre_hooks or module._backward_hooks
    )
    return type(module) in kinds and not has_hooks and "forward" not in module.__dict__


def packed_linear(
    weight: Tensor, bias: Tensor | None, rows: int, multiple: int = 1
) -> Callable[[Tensor], Tensor] | None:
    """x Wᵀ + b, (n, in) to (n, out), for many calls in inference: W is copied into the order that oneDNN reads.

    None where that is not possible, or does not pay: for few rows n, and for small weights, as measured on an AMD EPYC.
    Up to a `multiple`, outputs that are −inf are appended. The copy is kept as long as W, and made anew when W changes.
    """
    if rows < _PACKED_ROWS or weight.numel() < _PACKED_SIZE:
        return None
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        _COPIES.pop(weight, None)
        return None
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return None
    if missing := -weight.shape[0] % multiple:
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        bias = F.pad(bias, (0, missing), value=-torch.inf)
    copy = _packed(weight, missing)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, copy, bias, "none", [], "")


def _packed(weight: Tensor, missing: int) -> Tensor:
    """W with so many rows of zeros more, in oneDNN's order."""
    data, found = weight.detach(), _COPIES.get(weight)
    # What is made under `torch.inference_mode()` has no version: it is copied in every call.
    key = None if weight.is_inference() else (missing, *fingerprint(data))
    if found is not None and found[0] == key:
        return cast(Tensor, found[1])
    copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(F.pad(data, (0, 0, 0, missing)) if missing else data, None)
    if key is not None:
        _COPIES[weight] = key, copy
    return copy


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, H·K) to (B, H, T, K)."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def project_by_feature(module: Any, tokens: Tensor, layout: TokenLayout, heads: int) -> Tensor:
    """The values (B, H, T, K) of tokens as in `layout.pack`, laid out as (H, K, B, T) if the projection is plain."""
    if not is_plain(module):
        return split_heads(layout.pad(module(tokens)), heads)
    weight, bias = module.weight, module.bias
    rows = tokens.reshape(-1, tokens.shape[-1])
    columns = rows.t()
    if is_fast(weight.detach(), rows):
        values = onednn_linear(weight, rows)
        values = values if bias is None else values + bias[:, None]
    elif torch.is_autocast_enabled(tokens.device.type) or bias is None:
        values = weight @ columns
        values = values if bias is None else values + bias[:, None].to(values.dtype)
    else:
        values = torch.addmm(bias[:, None], weight, columns)
    if (real := layout.unpadded) is not None:
        values = real.put_columns(values)
    return values.view(heads, weight.shape[0] // heads, *layout.aligned.shape).permute(2, 0, 3, 1)


def join_heads(y: Tensor, layout: TokenLayout) -> Tensor:
    """(B, H, T, K) to the input of the output projection, (n, H·K) or (B, T, H·K) as in `layout.pack`."""
    y = y.transpose(1, 2).flatten(2)
    if (real := layout.unpadded) is None:
        return y
    # The kernel for shared logits writes feature by feature.
    by_feature = y.stride(1) == 1 and y.shape[-1] > 1
    return real.take_columns(y.permute(2, 0, 1)).t() if by_feature else real.take(y, aligned=True)
