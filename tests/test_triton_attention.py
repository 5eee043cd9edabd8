"""The Triton kernels against the equation: in Triton's interpreter on a CPU, compiled on a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from synthetic_attention import InnerLogits, MixedLogits, OuterLogits, SharedLogits
from synthetic_attention.kernels.batched import batched_attention
from synthetic_attention.kernels.eager import eager_attention
from synthetic_attention.logits import FactoredLogits

pytest.importorskip("triton")
# The interpreter was asked for by conftest.py before the kernels were defined.
from synthetic_attention.kernels.triton_attention import supports, triton_attention

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
CUDA = [pytest.param("cuda", dtype, marks=pytest.mark.cuda) for dtype in (torch.float16, torch.bfloat16)]
B, H, K, D = 3, 2, 5, 7
# Rows, keys, offset of causal rows, with a mask. Tiles have 64 rows and 32 columns here.
SHAPES = {
    "full": (37, 41, None, False),
    "padded": (37, 41, None, True),
    "causal, several tiles": (67, 73, 6, False),
    "causal, padded, keys that no row sees": (20, 45, 5, True),
}
FORMS = {
    "shared + inner": "rqk",
    "weight of each head": "rqkw",
    "one weight": "rqko",
    "bias": "rqkb",
    "learned key": "rhwb",
    "outer": "xy",
    "outer + shared": "xyr",
    "outer + inner + shared": "xyrqkw",
    "inner": "qk",
}


def leaves(form, rows, keys, device="cpu", dtype=torch.float32):
    """Tensors of the letters of a form, stored as a projection writes them, with gradients."""
    torch.manual_seed(rows)
    shapes = {
        "r": (H, rows, keys), "q": (B, rows, H, K), "k": (B, keys, H, K), "h": (B, rows, H, K), "b": (H, keys),
        "x": (B, rows, H, 29), "y": (B, rows, H, -(-keys // 29)), "v": (B, keys, H, D),
    }  # fmt: skip
    given = {name: torch.randn(shape, device=device) for name, shape in shapes.items() if name in FORMS[form] + "v"}
    given = {name: x.transpose(1, 2) if x.dim() == 4 else x for name, x in given.items()}
    if "h" in given:
        given["w"] = torch.randn(1, H, keys, K, device=device)
    elif "w" in FORMS[form] or "o" in FORMS[form]:
        given["w"] = torch.rand(1, H if "w" in FORMS[form] else 1, device=device) + 0.5
    return {name: x.to(dtype).requires_grad_() for name, x in given.items()}


def logits(t):
    terms = []
    if "r" in t:
        terms.append(SharedLogits(t["r"]))
    if "q" in t:
        terms.append(InnerLogits(t["q"], t["k"], t.get("b"), scale=0.3))
    if "h" in t:
        terms.append(InnerLogits(t["h"], t["w"], t["b"]))
    if "x" in t:
        terms.append(OuterLogits(t["x"], t["y"]))
    weights = None if "h" in t or "w" not in t else torch.cat([t["w"], *[torch.ones_like(t["w"])] * (len(terms) - 1)])
    return MixedLogits(terms, weights)


def holes(keys, device):
    mask = torch.ones(B, keys, dtype=torch.bool, device=device)
    mask[0, keys // 2 :], mask[1, 0], mask[2] = False, False, False
    return mask


def compute(t, mask, offset, dropout_p=0.0):
    return triton_attention(FactoredLogits.of(logits(t)), t["v"], mask, offset, dropout_p)


def compare(got, want, ours, theirs, **tolerance):
    torch.testing.assert_close(got.to(want.dtype), want, **tolerance)
    g = torch.randn_like(want)
    grads = torch.autograd.grad(got, list(ours.values()), g.to(got.dtype))
    for a, b in zip(grads, torch.autograd.grad(want, list(theirs.values()), g), strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, **tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_outputs_and_gradients(form, shape, device):
    rows, keys, offset, padded = SHAPES[shape]
    t = leaves(form, rows, keys, device)
    u = {name: x.detach().double().requires_grad_() for name, x in t.items()}
    mask = holes(keys, device) if padded else None
    assert supports(FactoredLogits.of(logits(t)), t["v"])
    want = eager_attention(logits(u), u["v"], mask, offset, 0.0)
    got = compute(t, mask, offset)
    compare(got, want, t, u, atol=1e-4, rtol=1e-4)
    if padded:
        assert (got[2] == 0).all()


# The interpreter has no matrix products in bfloat16.
@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float16), *CUDA])
@pytest.mark.parametrize("form", ["shared + inner", "outer + inner + shared"])
def test_half_precision_is_as_good_as_eager(form, dtype, device, monkeypatch):
    """Errors against float64 at most twice those of the equation in the same dtype; R stays in float32."""
    # A weight of each head: of few numbers some are exact by chance.
    monkeypatch.setitem(globals(), "H", 8)
    t = leaves(form, 50, 50, device, dtype)
    t["r"] = t["r"].detach().float().requires_grad_()
    u = {name: x.detach().double().requires_grad_() for name, x in t.items()}
    g = torch.randn(B, H, 50, D, device=device)
    results = []
    for tensors, out in (
        (t, compute(t, None, 0)),
        (t, eager_attention(logits(t), t["v"], None, 0, 0.0)),
        (u, eager_attention(logits(u), u["v"], None, 0, 0.0)),
    ):
        grads = torch.autograd.grad(out, list(tensors.values()), g.to(out.dtype))
        results.append([x.detach() for x in (out, *grads)])
    assert results[0][0].dtype == dtype
    for ours, plain, exact in zip(*results, strict=True):
        error, allowed = ((x.double() - exact).norm() / exact.norm() for x in (ours, plain))
        assert error <= 2 * allowed + 1e-3


@pytest.mark.parametrize("device", DEVICES)
def test_frozen_scores_get_no_gradient(device):
    t = leaves("weight of each head", 20, 20, device)
    t["r"].requires_grad_(False)
    u = {name: x.detach().double().requires_grad_(name != "r") for name, x in t.items()}
    got, want = compute(t, None, 0), eager_attention(logits(u), u["v"], None, 0, 0.0)
    ours, theirs = ({name: x for name, x in tensors.items() if name != "r"} for tensors in (t, u))
    compare(got, want, ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_dropout(device):
    """Kept weights are divided by 1 − p, each example has its own, and the backward has those of the forward."""
    rows = keys = 40
    t = leaves("shared + inner", rows, keys, device)
    t["v"] = torch.eye(keys, device=device).expand(B, H, -1, -1)[..., :D].clone().requires_grad_()
    plain = eager_attention(logits(t), t["v"], None, None, 0.0)
    torch.manual_seed(5)
    got = compute(t, None, None, dropout_p=0.25)
    kept = got.detach() / plain.detach()
    torch.testing.assert_close(kept, (kept > 0) / 0.75)
    assert 0.15 < (kept == 0).float().mean() < 0.35
    assert not torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[:, 0], kept[:, 1])
    # The same weights as a function of the values, which are linear in them.
    g = torch.randn_like(got)
    (grad,) = torch.autograd.grad(got, t["v"], g)
    torch.testing.assert_close(grad[..., :D, :], (got.detach().mT @ g)[..., :D, :], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_in_the_gradient_of_the_scores(device):
    """Against finite differences along the gradient, with the same seed."""
    t = leaves("shared + inner", 9, 9, device)
    g = torch.randn(B, H, 9, D, device=device)

    def loss(r):
        torch.manual_seed(7)
        return (compute({**t, "r": r}, None, 0, dropout_p=0.3) * g).sum()

    (grad,) = torch.autograd.grad(loss(t["r"]), t["r"])
    step = 1e-2 * grad / grad.norm()
    difference = (loss(t["r"] + step) - loss(t["r"] - step)) / 2e-2
    torch.testing.assert_close(difference, grad.norm(), rtol=1e-2, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_unsupported_logits(device):
    t = leaves("inner", 9, 9, device)
    assert not supports(FactoredLogits.of(logits(t)), t["v"].double())
    assert not supports(FactoredLogits.of(SharedLogits(torch.zeros(B, H, 9, 9))), t["v"])
    assert not supports(FactoredLogits.of(InnerLogits(torch.zeros(B, H, 9, 129), torch.zeros(B, H, 9, 129))), t["v"])


def test_second_derivatives_are_refused():
    t = leaves("shared + inner", 9, 9)
    (grad,) = torch.autograd.grad(compute(t, None, None).sum(), t["r"], create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        grad.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("spread", [30.0, 70.0, 95.0, 103.0, 200.0])
def test_shared_logits_of_a_wide_range_under_a_mask(spread, causal, device):
    """exp(score − rowmax) vanishes where a mask leaves small scores only: those rows are computed again."""
    keys = 33
    scores = -torch.linspace(0, spread, keys, device=device) + 0.1 * torch.randn(H, keys, keys, device=device)
    scores.requires_grad_()
    value = torch.randn(H, D, B, keys, device=device).permute(2, 0, 3, 1).requires_grad_()
    mask = torch.ones(B, keys, dtype=torch.bool, device=device)
    mask[0, : keys - 1], mask[1] = False, False
    ours = {"r": scores, "v": value}
    theirs = {name: x.detach().double().requires_grad_() for name, x in ours.items()}
    offset = 2 if causal else None
    want = eager_attention(SharedLogits(theirs["r"]), theirs["v"], mask, offset, 0.0)
    compare(batched_attention(scores, value, mask, offset, None), want, ours, theirs, atol=1e-4, rtol=1e-4)


def test_without_a_gpu_the_compiled_kernels_fail_and_blocks_of_rows_take_over():
    """Triton itself, not its interpreter: what it raises here is real."""
    code = """
import warnings
import torch
import test_triton_attention as tests
t = tests.leaves("outer + inner + shared", 20, 20)
u = {name: x.detach().double().requires_grad_() for name, x in t.items()}
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    got = tests.compute(t, None, 0)
    want = tests.eager_attention(tests.logits(u), u["v"], None, 0, 0.0)
    tests.compare(got, want, t, u, atol=1e-4, rtol=1e-4)
print([w.category.__name__ for w in found])
"""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['RuntimeWarning']"


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "memory"), [(86, 99), (90, 227)])
def test_kernels_compile_for_gpus(capability, memory):
    """Without a GPU, into its machine code; KiB of shared memory that a program of such a GPU has."""
    code = f"""
import torch, triton
import test_triton_attention as tests
from synthetic_attention.kernels import triton_attention as ours
class Driver:
    get_current_target = lambda self: triton.backends.compiler.GPUTarget("cuda", {capability}, 32)
    get_current_device = get_current_stream = lambda self, device=None: 0
    get_device_interface = lambda self: torch.cuda
class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel
    def __getitem__(self, grid):
        return lambda *given, **constants: print(self.kernel.warmup(*given, grid=grid, **constants).metadata.shared)
triton.runtime.driver.set_active(Driver())
for name in [name for name in vars(ours) if name.endswith("_kernel")]:
    setattr(ours, name, Compiled(getattr(ours, name)))
mixture, outer = "shared + inner", "outer + inner + shared"
half, exact = torch.float16, torch.float32
for form, dtype, width, dropout_p in (mixture, half, 64, 0), (outer, half, 128, 0.1), (mixture, exact, 128, 0):
    tests.K = tests.D = width
    tests.compute(tests.leaves(form, 64, 64, dtype=dtype), None, 0, dropout_p).sum().backward()
"""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        cwd=Path(__file__).parent, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert max(map(int, done.stdout.split())) <= memory * 1024


class ComparedStrides(TorchDispatchMode):
    """Runs each Triton operator on fake tensors too: compiled code relies on the strides of those."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        if "triton" in func.name():
            self.names.add(func.name())
            mode = FakeTensorMode()
            fake_args = tree_map_only(torch.Tensor, lambda x: mode.from_tensor(x.detach()), args)
            with mode:
                fakes = func(*fake_args, **(kwargs or {}))
            for real, fake in zip(results, fakes, strict=True):
                assert (real.shape, real.stride(), real.dtype) == (fake.shape, fake.stride(), fake.dtype)
        return results


@pytest.mark.parametrize("form", ["weight of each head", "one weight", "learned key", "outer + inner + shared"])
@pytest.mark.parametrize("batch", [1, B])
def test_compiled_code_knows_all_strides(form, batch):
    given = {name: x.detach()[:batch] if name in "qkhxyv" else x for name, x in leaves(form, 20, 20).items()}
    # Values by feature and two inner terms are stored in another order than projections write.
    given["v"] = given["v"].permute(1, 3, 0, 2).contiguous().permute(2, 0, 3, 1)
    t = {name: (x.contiguous() if name in "qk" else x).detach().requires_grad_() for name, x in given.items()}
    mode = ComparedStrides()
    with mode:
        torch.autograd.grad(compute(t, None, 0).sum(), list(t.values()))
    assert len(mode.names) == 2
