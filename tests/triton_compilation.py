"""Compile the Triton kernels for a GPU that is not there: `main(90)` prints the shared memory of each as JSON."""

import json
import warnings
from unittest import mock

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from synthetic_attention.kernels.triton_attention import Call

B, H, T, S = 4, 16, 512, 512
CASES = {
    "shared + inner": {},
    "causal, mask, dropout": {"mask": True, "offset": 0, "dropout": True},
    "wide": {"width": 128},
    "wide, float32": {"dtype": torch.float32, "width": 128, "mask": True, "offset": 0, "dropout": True},
    "outer": {"inner": False, "shared": False, "outer": 32},
    "all": {"outer": 64, "bias": True, "width": 128},
    "all, float32": {"dtype": torch.float32, "outer": 64, "bias": True},
    "outer of long inputs": {"inner": False, "outer": 128, "dtype": torch.float32},
    "again": {"inner": False, "mask": True, "flag": True},
}


class Driver:
    """What the compiler asks of a driver."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def run(dtype=torch.bfloat16, width=64, inner=True, shared=True, bias=False, outer=0, mask=False, offset=None,
        dropout=False, flag=False):  # fmt: skip
    def tokens(length, width):
        return torch.empty(B, length, H, width, dtype=dtype).transpose(1, 2)

    call = Call(
        tokens(S, width),
        tokens(T, width) if inner else None,
        tokens(S, width) if inner else None,
        torch.empty(H, T, S, dtype=dtype) if shared else None,
        torch.empty(H) if shared else None,
        torch.empty(H, S, dtype=dtype) if bias else None,
        tokens(T, outer) if outer else None,
        tokens(T, -(-S // outer)) if outer else None,
        torch.ones(B, S, dtype=torch.bool) if mask else None,
        torch.zeros(1, dtype=torch.int64) if dropout else None,
        offset=offset,
        dropout_p=0.1 if dropout else 0.0,
        flag=torch.ones(1, dtype=torch.int32) if flag else None,
    )
    out, lse = call.empty_outputs()
    out = out.transpose(1, 2)
    call.launch_forward(out, lse)
    call.launch_backward(out, out, lse, call.buffers(True, parts=2))


def main(capability):
    # What does not compile gives a warning.
    warnings.simplefilter("error")
    driver.set_active(Driver(capability))
    shared, launch = {}, JITFunction.run
    for name, case in CASES.items():

        def compile_only(kernel, *args, warmup, **options):
            compiled = launch(kernel, *args, warmup=True, **options)
            shared[f"{name}: {kernel.fn.__name__}"] = compiled.metadata.shared  # noqa: B023
            return compiled

        with mock.patch.object(JITFunction, "run", compile_only):
            run(**case)
    print(json.dumps(shared))
