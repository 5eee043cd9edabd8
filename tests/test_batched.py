"""The kernel for shared logits on an accelerator: outputs and gradients against the equation, on any device."""

import pytest
import torch
from torch.nn import functional as F

from synthetic_attention import reference
from synthetic_attention.kernels.batched import batched_attention

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
B, H, D = 3, 2, 4
# Rows, keys, and the offset of causal rows; the longest take several bands.
SHAPES = {
    "full": (5, 7, None),
    "causal": (7, 7, 0),
    "causal from 3": (5, 8, 3),
    "several bands": (600, 600, 0),
    "several bands from 100": (517, 617, 100),
    "keys that no row sees": (300, 400, 10),
}


def inputs(rows, keys, device, dtype=torch.float64, padded=False):
    torch.manual_seed(rows + keys)
    scores = torch.randn(H, rows, keys, dtype=dtype, device=device, requires_grad=True)
    # By feature, as the projection writes values.
    value = torch.randn(H, D, B, keys, dtype=dtype, device=device).permute(2, 0, 3, 1).requires_grad_()
    mask = None
    if padded:
        mask = torch.ones(B, keys, dtype=torch.bool, device=device)
        mask[0, 3:], mask[1, 0], mask[2] = False, False, False
    return scores, value, mask


def compare(got, want, ours, theirs, **tolerance):
    torch.testing.assert_close(got.to(want.dtype), want, **tolerance)
    g = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(got, ours, g.to(got.dtype)), torch.autograd.grad(want, theirs, g), strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, **tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("finite", [False, True], ids=["", "finite"])
def test_outputs_and_gradients(shape, padded, finite, device):
    rows, keys, offset = SHAPES[shape]
    scores, value, mask = inputs(rows, keys, device, padded=padded)
    got = batched_attention(scores, value, mask, offset, None, is_finite=finite)
    want = reference.attend(scores.expand(B, -1, -1, -1), value, mask, offset is not None, offset or 0)
    compare(got, want, (scores, value), (scores, value))
    if mask is not None:
        assert (got[2] == 0).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("shape", ["full", "several bands"])
def test_dropout_is_shared_by_the_batch(shape, padded, device):
    rows, keys, offset = SHAPES[shape]
    scores, value, mask = inputs(rows, keys, device, padded=padded)
    keep = F.dropout(torch.ones_like(scores), 0.3)
    got = batched_attention(scores, value, mask, offset, keep)
    hidden = torch.zeros(B, 1, rows, keys, dtype=torch.bool, device=device)
    if mask is not None:
        hidden |= ~mask[:, None, None]
    if offset is not None:
        hidden |= torch.ones(rows, keys, dtype=torch.bool, device=device).triu(1)
    weights = torch.softmax(scores.expand(B, -1, -1, -1).masked_fill(hidden, -torch.inf), -1).nan_to_num(0)
    compare(got, (weights * keep) @ value, (scores, value), (scores, value))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_gradcheck(padded, device):
    scores, value, mask = inputs(4, 5, device, padded=padded)
    assert torch.autograd.gradcheck(lambda r, v: batched_attention(r, v, mask, None, None), (scores, value))
    assert torch.autograd.gradcheck(lambda r, v: batched_attention(r, v, mask, 1, None), (scores, value))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("dtypes", [(torch.bfloat16,) * 2, (torch.float32, torch.bfloat16), (torch.float16,) * 2])
def test_half_precision(dtypes, padded, device):
    """Also parameters in float32 with values in bfloat16, as under autocast."""
    scores, value, mask = inputs(300, 300, device, torch.float32, padded)
    ours = scores.detach().to(dtypes[0]).requires_grad_(), value.detach().to(dtypes[1]).requires_grad_()
    theirs = [x.detach().double().requires_grad_() for x in ours]
    want = reference.attend(theirs[0].expand(B, -1, -1, -1), theirs[1], mask, True)
    got = batched_attention(*ours, mask, 0, None)
    assert got.dtype == dtypes[1]
    g = torch.randn_like(want)
    grads = zip(torch.autograd.grad(got, ours, g.to(got.dtype)), torch.autograd.grad(want, theirs, g), strict=True)
    for a, b in ((got, want), *grads):
        assert (a.double() - b).detach().norm() / b.detach().norm() < 1e-2


@pytest.mark.parametrize("device", DEVICES)
def test_rows_without_a_finite_score_are_zeros(device):
    scores, value, _ = inputs(5, 7, device)
    hidden = torch.zeros_like(scores)
    hidden[0, 2] = -torch.inf
    out = batched_attention(scores + hidden, value, None, None, None)
    assert (out[:, 0, 2] == 0).all()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), (scores, value)))


def test_second_derivatives_are_refused():
    scores, value, _ = inputs(4, 5, "cpu")
    (grad,) = torch.autograd.grad(batched_attention(scores, value, None, None, None).sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        grad.sum().backward()
