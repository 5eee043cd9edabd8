"""--device and --dtype, as the commands that use a trained model take them."""

from __future__ import annotations

__all__ = ["DEVICE_HELP", "DTYPE_HELP"]

DEVICE_HELP = "cpu, cuda or what else PyTorch has. [default: the accelerator that is there, or else cpu]"
DTYPE_HELP = "float32, or bfloat16: the weights, and what is computed from them."
