"""A linear layer that is as fast for the few rows of a decoding step as for many.

For 12 to 63 rows MKL multiplies x Wᵀ, as PyTorch asks it to, more slowly than W xᵀ and the copy that puts the result
into order (on a Xeon with AVX-512).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

__all__ = ["Linear", "is_plain", "linear"]

# With fewer or more rows than these x Wᵀ is as fast.
_FEWEST_ROWS, _MOST_ROWS = 12, 63


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, as `F.linear`: (…, in) to (…, out), with weight (out, in) and bias (out,)."""
    if not _swapped(x, weight):
        return F.linear(x, weight, bias)
    columns = x.reshape(-1, x.shape[-1]).t()
    product = weight @ columns if bias is None else torch.addmm(bias[:, None], weight, columns)
    return product.t().contiguous().view(*x.shape[:-1], weight.shape[0])


def _swapped(x: Tensor, weight: Tensor) -> bool:
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.dtype != torch.float32 or not x.shape[-1]:
        return False
    if not _FEWEST_ROWS <= x.numel() // x.shape[-1] <= _MOST_ROWS:
        return False
    # The backward is that of the usual product.
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return False
    return weight.dtype == x.dtype and torch.backends.mkl.is_available() and not torch.is_autocast_enabled("cpu")


def is_plain(module: nn.Module) -> bool:
    """Whether a call of `module` is x Wᵀ + b and nothing else, so that W and b may be used in another way.

    It is not where somebody has put something on it: a hook, a parametrization, an adapter, or a `forward` of its own
    (as accelerate does, to bring weights from elsewhere).
    """
    # Of all modules: compiled code has none of its own.
    if not torch.compiler.is_compiling() and _has_any_global_hook():
        return False
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return type(module) in (Linear, nn.Linear) and not any(map(len, hooks)) and "forward" not in module.__dict__


class Linear(nn.Linear):
    """`nn.Linear` by `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """(…, in) to (…, out)."""
        return linear(input, self.weight, self.bias)
