"""Dynamic int8 quantization of linear layers, for inference on a CPU.

The weights of each output have a scale, and so have the inputs of each row: no row depends on the others of its batch.
The product itself is PyTorch's, of int8 matrices into int32.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .matmul import is_plain

_Module = TypeVar("_Module", bound=nn.Module)

# Below, quantizing the input takes longer than the int8 product saves, at batch 1.
SMALLEST_WEIGHT = 2**17
# The largest absolute int8 number: −128 is not used, so that scales are symmetric.
_LARGEST = 127


class Int8Linear(nn.Module):
    """x Wᵀ + b of an `nn.Linear` with both factors rounded to int8, (…, in) to (…, out); W is a copy.

    W ≈ int8 weight (out, in) · scale (out,), with scale = max |row of W| / 127; rows of x likewise, in every call.
    """

    int8_weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, scale = _quantize(linear.weight.detach().float())
        self.register_buffer("int8_weight", weight)
        self.register_buffer("scale", scale[:, 0])
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        rows, scale = _quantize(x.reshape(-1, self.in_features).float())
        product = torch._int_mm(rows, self.int8_weight.t()) * scale
        y = product * self.scale if self.bias is None else torch.addcmul(self.bias, product, self.scale)
        return y.view(*x.shape[:-1], self.out_features).to(x.dtype)

    @property
    def weight(self) -> Tensor:
        """The int8 weight. Some models read its dtype, as T5 does."""
        return self.int8_weight

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def quantize_int8(model: _Module) -> _Module:
    """Replace the linear layers of a model by int8 ones, in place, for inference on a CPU.

    Layers of less than 131,072 weights stay as they are, because int8 does not make them faster. The output projection
    has a copy of the embedding that it is tied to; embeddings and the parameters of synthesizing functions keep their
    type. Save the model before: `save_pretrained` refuses an int8 model, `export_model` takes it. Models of other
    packages work too, if they call their linear layers; `nn.TransformerEncoderLayer` reads the weights instead.

    Returns:
        The model, in eval mode and without gradients.

    Raises:
        ValueError: the model is not on a CPU.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if device.type != "cpu":
        raise ValueError(f"got a model on {device}; expected one on the CPU: int8 is for CPUs, use bfloat16 elsewhere")
    for parent in list(model.modules()):
        children: Any = list(parent.named_children())
        for name, child in children:
            if is_plain(child) and child.weight.numel() >= SMALLEST_WEIGHT:
                setattr(parent, name, Int8Linear(child))
    return model.eval().requires_grad_(False)


def _quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (n, m) as int8 and their scales (n, 1)."""
    # A row of zeros would have scale 0.
    scale = torch.linalg.vector_norm(rows, torch.inf, -1, keepdim=True).mul_(1 / _LARGEST).clamp_(min=1e-12)
    return (rows / scale).round_().to(torch.int8), scale
