"""Whether PyTorch transforms the code that runs, and the fast paths have to stand aside.

The kernels of this package are operators with one derivative, in reverse mode, and without a batching rule. Under
`torch.func` (grad, vmap, jvp, …) and in forward mode only the equation as it is written gives what is asked for.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

__all__ = ["is_traced", "is_transformed"]


def is_transformed() -> bool:
    """Whether a transform of `torch.func`, or forward-mode differentiation, is at work."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_traced() -> bool:
    """Whether code must not ask for the content of a tensor: it is compiled or transformed."""
    return torch.compiler.is_compiling() or is_transformed()
