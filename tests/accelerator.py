"""A device for tests that computes on the CPU and notes what makes code wait for an accelerator.

Its tensors are on a device of their own, so code takes the ways that it has for accelerators, backward included. The
device is registered with PyTorch for the whole process: import this file in a process that tests nothing else.
"""

import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_SOURCE = "synthetic_attention/"
_module = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0)
_module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
_module._is_in_bad_fork, _module.manual_seed_all = lambda: False, lambda seed: None
_setup_privateuseone_for_python_backend("pretended", backend_module=_module)
DEVICE = torch.device("pretended:0")


class Accelerator(TorchDispatchMode):
    """While it is active, tensors can be made on the device, and `reads` has the lines that waited for it."""

    reads: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.reads = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().split(".")[0]
        if name in OPDEFS:
            # An operator of the package: it is run on the device, line by line.
            with self:
                return OPDEFS[name]._init_fn(*args, **kwargs)
        on_device = any(isinstance(x, OnDevice) for x in tree_leaves((args, kwargs)))
        target = kwargs.get("device") or (DEVICE if on_device else torch.device("cpu"))
        if self._waits(func, name, args, on_device, target):
            self.note(name)
        if target == DEVICE and "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        result = func(*tree_map_only(OnDevice, _data, args), **tree_map_only(OnDevice, _data, kwargs))
        if func._schema.is_mutable:
            written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
            given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
            return given[written[0]] if func._schema.returns else None
        return tree_map_only(Tensor, OnDevice, result) if target.type == DEVICE.type else result

    def _waits(self, func: Any, name: str, args: Any, on_device: bool, target: torch.device) -> bool:
        if name in ("aten::_to_copy", "aten::copy_"):
            # In either direction.
            return (target.type == DEVICE.type) != all(isinstance(x, OnDevice) for x in args if isinstance(x, Tensor))
        if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index"):
            indices = [x for x in args[1] if x is not None]
            return on_device and any(x.dtype == torch.bool or not isinstance(x, OnDevice) for x in indices)
        tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        # With its size given it does not wait.
        return on_device and bool(tags & {*func.tags}) and name != "aten::nonzero_static"

    def note(self, name: str) -> None:
        """Add a line to `reads`."""
        frames = [frame for frame in traceback.extract_stack() if _SOURCE in frame.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "elsewhere"
        self.reads.append(f"{name} at {where}")


class OnDevice(torch.Tensor):
    """A tensor on the device; `data_on_cpu` has its numbers."""

    data_on_cpu: Tensor

    @staticmethod
    def __new__(cls, x: Tensor) -> "OnDevice":
        self: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls, x.shape, strides=x.stride(), storage_offset=x.storage_offset(), dtype=x.dtype, device=DEVICE
        )
        self.data_on_cpu = x
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"got {func} outside of an Accelerator; expected its tensors to be used inside")

    def tolist(self) -> Any:
        """PyTorch's own does not work for subclasses."""
        mode = torch.utils._python_dispatch._get_current_dispatch_mode()
        assert isinstance(mode, Accelerator)
        mode.note("tolist")
        return self.data_on_cpu.tolist()


def _data(x: OnDevice) -> Tensor:
    return x.data_on_cpu


def move(module: nn.Module) -> nn.Module:
    """Move the parameters and buffers of a module to the device, in place."""
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False):
            setattr(child, name, nn.Parameter(OnDevice(parameter.detach().clone()), parameter.requires_grad))
        for name, buffer in child.named_buffers(recurse=False):
            setattr(child, name, OnDevice(buffer.clone()))
    return module
