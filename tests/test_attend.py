"""`attend` on every form of logits, under every mask: outputs and all gradients against the reference's loops."""

from typing import Any

import pytest
import torch
from torch import Tensor

from synthetic_attention import InnerLogits, MixedLogits, OuterLogits, SharedLogits, attend, reference
from synthetic_attention.logits import Logits

B, H, T, S, K, V = 2, 3, 5, 7, 11, 13
F64 = torch.float64


# Leaves by letter: r shared scores; q k a dot product; h w c a learned key with its bias; x y outer factors; m weights
# of a mixture. A form is a term, or a list of terms and then the rows of m (None for a plain sum).
FORMS: dict[str, Any] = {
    "shared": "r",
    "shared per example": "r4",
    "inner": "q k",
    "inner learned": "h w c",
    "inner learned, no bias": "h w",
    "outer": "x y",
    "shared + shared": ["r", "r2", slice(2)],
    "shared + inner": ["r", "q k", slice(2)],
    "shared + inner, plain sum": ["r", "q k", None],
    "shared + inner learned": ["r", "h w c", slice(2)],
    "inner learned + inner": ["h w c", "q k", slice(2)],
    "outer + inner": ["x y", "q k", slice(2)],
    "outer + shared": ["x y", "r", slice(2)],
    "outer + outer": ["x y", "x2 y2", slice(2)],
    "shared + inner learned + inner": ["r", "h w c", "q k", slice(3)],
    "nested": [["r", "q k", slice(1, 3)], "x y", slice(2)],
}
# Where values are as wide as the keys, the fused kernel of PyTorch takes inner logits on a CPU too.
ONE_WIDTH = ", one width"
FORMS |= {name + ONE_WIDTH: FORMS[name] for name in ("inner", "inner learned", "shared + inner")}


def names_of(form: Any) -> list[str]:
    """The leaves that a form reads, so that a gradient is asked of these and no others."""
    if isinstance(form, str):
        return form.split()
    return [name for term in form[:-1] for name in names_of(term)] + (["m"] if form[-1] else [])


def make(form: Any, t: dict[str, Tensor]) -> Logits:
    """The logits of a form, by name or as it is written above."""
    form = FORMS.get(form, form) if isinstance(form, str) else form
    if isinstance(form, list):
        return MixedLogits([make(term, t) for term in form[:-1]], None if form[-1] is None else t["m"][form[-1]])
    kind: Any = {"r": SharedLogits, "x": OuterLogits}.get(form[0], InnerLogits)
    return kind(*(t[leaf] for leaf in form.split()))


def written_out(form: Any, t: dict[str, Tensor]) -> Tensor:
    """The same as a matrix (B or 1, H, T, S), head by head from the equations: the oracle, free of our code."""
    form = FORMS.get(form, form) if isinstance(form, str) else form
    if isinstance(form, list):
        terms = [written_out(term, t) for term in form[:-1]]
        if form[-1] is None:
            return sum(terms[1:], terms[0])
        weights = t["m"][form[-1]]
        return sum(weights[i][:, None, None] * term for i, term in enumerate(terms))  # type: ignore[return-value]
    first, *others = (t[leaf] for leaf in form.split())
    if not others:
        return first if first.dim() == 4 else first[None]
    rows = []
    for b in range(first.shape[0]):
        heads = []
        for h in range(first.shape[1]):
            other = others[0][b if others[0].shape[0] > 1 else 0, h]
            if form.startswith("x"):
                heads.append(reference.outer(first[b, h], other, t["v"].shape[-2]))
            else:
                heads.append(first[b, h] @ other.T + (others[1][h] if len(others) > 1 else 0))
        rows.append(torch.stack(heads))
    return torch.stack(rows) if rows else first.new_zeros(*first.shape[:3], t["v"].shape[-2])


def leaves(name, rows=T, keys=S, batch=B, heads=H, value=V, dtype=torch.float32, grad=True) -> dict[str, Tensor]:
    a = int(keys**0.5) + 1
    value = K if name.endswith(ONE_WIDTH) else value
    shapes = {
        "r": (heads, rows, keys),
        "r2": (heads, rows, keys),
        "r4": (batch, heads, rows, keys),
        "q": (batch, heads, rows, K),
        "k": (batch, heads, keys, K),
        "h": (batch, heads, rows, K),
        "w": (1, heads, keys, K),
        "c": (heads, keys),
        "x": (batch, heads, rows, a),
        "y": (batch, heads, rows, a),
        "x2": (batch, heads, rows, a + 1),
        "y2": (batch, heads, rows, a),
        "m": (3, heads),
    }
    made = {leaf: torch.randn(shapes[leaf], dtype=F64) for leaf in dict.fromkeys(names_of(FORMS[name]))}
    # Scores of the size that a trained layer has: without it one key takes everything and the gradients vanish.
    for leaf in set(made) & {"q", "h"}:
        made[leaf] *= K**-0.5
    made["v"] = torch.randn(batch, heads, keys, value, dtype=F64)
    return {leaf: t.to(dtype).requires_grad_(grad) for leaf, t in made.items()}


def holes(batch=B, keys=S) -> Tensor:
    """Row 0 has gaps and begins masked; the others are padded on the right by as many as their number."""
    mask = torch.ones(batch, keys, dtype=torch.long)
    mask[0, [0, 3]] = 0
    for row in range(1, batch):
        mask[row, -row:] = 0
    return mask


def left(batch=B, keys=S) -> Tensor:
    return holes(batch, keys).flip(0, 1)


def one_empty(batch=B, keys=S) -> Tensor:
    return (torch.arange(batch) < batch - 1)[:, None].expand(batch, keys)


MASKS: dict[str, Any] = {"none": lambda: None, "holes": holes, "left": left, "one row empty": one_empty}
CAUSAL = {"full": (False, 0), "causal": (True, 0), "causal from 2": (True, 2)}


def expected(form, t, mask=None, is_causal=False, offset=0, bias=None) -> Tensor:
    """The oracle, in the dtype of `t`."""
    return reference.attend(written_out(form, t), t["v"], mask, is_causal, offset, bias)


def eager(form, t, mask: Tensor, is_causal: bool) -> Tensor:
    """As torch computes it, all rows at once; of a square matrix, where every row sees a key."""
    visible = mask[:, None, None, :].expand(-1, -1, mask.shape[1], -1)
    visible = visible.tril() if is_causal else visible
    return torch.softmax(written_out(form, t).masked_fill(~visible, float("-inf")), dim=-1) @ t["v"]


def double(t: dict[str, Tensor]) -> dict[str, Tensor]:
    return {leaf: x.detach().double().requires_grad_(x.requires_grad) for leaf, x in t.items()}


def compare_with_gradients(
    got: Tensor, want: Tensor, ours: dict[str, Tensor], theirs: dict[str, Tensor], **tol
) -> None:
    torch.testing.assert_close(got.detach().to(want.dtype), want.detach(), **tol)
    g = torch.randn_like(want)
    got.backward(g.to(got.dtype))
    want.backward(g)
    for leaf, x in ours.items():
        assert x.grad is not None, leaf
        torch.testing.assert_close(
            x.grad.to(want.dtype), theirs[leaf].grad, **tol, msg=lambda m, leaf=leaf: f"gradient of {leaf}: {m}"
        )


@pytest.mark.parametrize("form", FORMS)
def test_dense_is_the_matrix(form):
    t = leaves(form, grad=False)
    want, logits = written_out(form, t), make(form, t)
    for length in (S, 3):
        torch.testing.assert_close(logits.dense(length).expand_as(want[..., :length]), want[..., :length])
    # By default all columns: outer factors have more, in a mixture those that all terms have.
    whole = logits.dense()
    assert whole.shape[-1] == {"outer": 9, "outer + outer": 9}.get(form, S)
    torch.testing.assert_close(whole[..., :S].expand_as(want), want)


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_training_and_inference_match_the_reference(form, mask, causal):
    t = leaves(form)
    u, before = double(t), {leaf: x.detach().clone() for leaf, x in t.items()}
    mask, (is_causal, offset) = MASKS[mask](), CAUSAL[causal]
    want = expected(form, u, mask, is_causal, offset)
    with torch.inference_mode():
        got = attend(make(form, t), t["v"], mask, is_causal, query_offset=offset)
    torch.testing.assert_close(got.double(), want.detach(), atol=2e-5, rtol=2e-5)
    got = attend(make(form, t), t["v"], mask, is_causal, query_offset=offset)
    compare_with_gradients(got, want, t, u, atol=2e-5, rtol=2e-5)
    assert all(torch.equal(before[leaf], t[leaf]) for leaf in t)


@pytest.mark.parametrize("mask", ["none", "holes"])
@pytest.mark.parametrize("shape", [(T, S), (H, T, S), (1, H, T, S), (B, H, T, S)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_additive_bias(form, shape, mask):
    t = leaves(form) | {"bias": torch.randn(shape, requires_grad=True)}
    u, mask = double(t), MASKS[mask]()
    got = attend(make(form, t), t["v"], mask, True, query_offset=2, attn_bias=t["bias"])
    compare_with_gradients(got, expected(form, u, mask, True, 2, u["bias"]), t, u, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
def test_additive_bias_may_hide_keys(form, grad):
    """-inf, or the most negative number as the libraries write it, hides a key; a row that is left none is zeros."""
    hidden = torch.rand(B, 1, T, S) < 0.4
    hidden[0, 0, 1] = True
    visible = ~hidden
    t = leaves(form, grad=grad)
    u = double(t)
    got = attend(make(form, t), t["v"], attn_bias=torch.zeros(hidden.shape).masked_fill(hidden, float("-inf")))
    logits = written_out(form, u).expand(B, H, T, S)
    weights = [[reference.masked_softmax(logits[b, h], visible[b, 0]) for h in range(H)] for b in range(B)]
    want = torch.stack([torch.stack(row) for row in weights]) @ u["v"]
    if grad:
        compare_with_gradients(got, want, t, u, atol=2e-5, rtol=2e-5)
    else:
        torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("form", FORMS)
def test_bias_and_mask_together_may_hide_all_keys(form):
    """The bias leaves row 1 only the keys that the mask hides: zeros, and no NaN in any gradient."""
    t = leaves(form)
    mask = torch.ones(B, S)
    mask[0, 3:] = 0
    bias = torch.zeros(T, S)
    bias[1, :3] = float("-inf")
    out = attend(make(form, t), t["v"], mask, attn_bias=bias)
    assert torch.equal(out[0, :, 1], torch.zeros_like(out[0, :, 1]))
    assert (out[1] != 0).all()
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in t.values())


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (torch.ones(T, S, dtype=torch.bool), r"dtype torch\.bool.*0 where a key may be seen"),
        (torch.zeros(H, H, T, S), r"\(3, 3, 5, 7\).*B = 2, H = 3"),
        (torch.zeros(B, T, S), r"\(2, 5, 7\).*T = 5, S = 7"),
    ],
)
@pytest.mark.parametrize("form", ["shared", "inner, one width", "shared + inner"])
def test_biases_that_do_not_fit_are_refused(form, bias, message):
    t = leaves(form)
    with pytest.raises(ValueError, match=message):
        attend(make(form, t), t["v"], attn_bias=bias)


@pytest.mark.parametrize("rows", [1, T])
def test_heads_and_examples_that_share_a_key(rows):
    shapes = {"q": (B, 2 * H, rows, K), "k": (1, H, S, K), "v": (B, 2 * H, S, V)}
    ours = {name: torch.randn(shape, requires_grad=True) for name, shape in shapes.items()}
    theirs = {name: x.detach().clone().requires_grad_() for name, x in ours.items()}
    logits = InnerLogits(ours["q"], ours["k"])
    scores = theirs["q"] @ theirs["k"].repeat_interleave(2, dim=1).mT
    torch.testing.assert_close(logits.dense(), scores)
    compare_with_gradients(attend(logits, ours["v"]), reference.attend(scores, theirs["v"]), ours, theirs)


@pytest.mark.parametrize("shape", [(1, H, T, S), (1, T, S), (B, 1, T, S), (1, 1, T, S)])
@pytest.mark.parametrize("other", [False, True])
def test_scores_for_one_head_or_example_are_for_all(shape, other):
    scores, value = torch.randn(shape, requires_grad=True), torch.randn(B, H, S, V)
    query, key = torch.randn(B, H, T, K), torch.randn(B, H, S, K)
    logits = MixedLogits([SharedLogits(scores), InnerLogits(query, key)]) if other else SharedLogits(scores)
    want = reference.attend((scores + query @ key.mT if other else scores).expand(B, H, T, S), value, holes())
    got = attend(logits, value, holes())
    torch.testing.assert_close(got, want)
    (ours,) = torch.autograd.grad(got.square().sum(), scores)
    (theirs,) = torch.autograd.grad(want.square().sum(), scores)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("batch", "rows", "keys"), [(0, T, S), (B, 0, S), (B, T, 0)])
@pytest.mark.parametrize("form", ["shared", "inner, one width", "shared + inner"])
def test_nothing_to_attend_is_zeros(form, batch, rows, keys):
    t = leaves(form, rows=rows, keys=keys, batch=batch)
    out = attend(make(form, t), t["v"], torch.ones(batch, keys), True)
    assert out.shape == (batch, H, rows, t["v"].shape[-1])
    assert (out == 0).all()


@pytest.mark.parametrize("spread", [20.0, 50.0])
def test_float16_values_under_a_mask(spread):
    """Hidden keys may be far above the visible ones; E would vanish in float16 long before it does in float32."""
    scores = (-torch.linspace(0, spread, S)).expand(H, T, S).clone().requires_grad_()
    value = torch.randn(B, H, S, V).half().requires_grad_()
    mask = torch.ones(B, S)
    mask[0, :4] = 0
    out = attend(SharedLogits(scores), value, mask)
    want = reference.attend(scores.expand(B, H, T, S), value.detach().float(), mask)
    torch.testing.assert_close(out.float(), want, atol=3e-3, rtol=3e-3)
    out.sum().backward()
    assert scores.grad.isfinite().all()
    assert value.grad.isfinite().all()


def test_bfloat16_gradients_do_not_stagnate_over_blocks():
    """The gradients of what all examples share are sums over many blocks; in bfloat16 small addends would be lost."""
    form = "shared + inner learned"
    t = leaves(form, rows=128, keys=128, batch=64, dtype=torch.bfloat16)
    with torch.no_grad():
        t["v"].add_(1)
    u = double(t)
    out, want = attend(make(form, t), t["v"]), torch.softmax(written_out(form, u), dim=-1) @ u["v"]
    g = torch.rand_like(want)
    out.backward(g.to(out.dtype))
    want.backward(g.to(out.dtype).double())
    for leaf in set(t) & {"w", "c", "r"}:
        error = (t[leaf].grad.double() - u[leaf].grad).norm() / u[leaf].grad.norm()
        assert error < 0.02, leaf


@pytest.mark.parametrize(("rows", "keys"), [(1, S), (1, 1), (T, 1)])
@pytest.mark.parametrize("form", FORMS)
def test_single_query_or_key(form, rows, keys):
    """A decoding step: one query that sees everything before it."""
    t = leaves(form, rows=rows, keys=keys)
    u = double(t)
    mask = holes(keys=keys) if keys > 1 else None
    offset = max(keys - rows, 0)
    got = attend(make(form, t), t["v"], mask, True, query_offset=offset)
    compare_with_gradients(got, expected(form, u, mask, True, offset), t, u, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_lengths_that_take_several_blocks(form, is_causal):
    """Long enough that a kernel that works in blocks has several, the last one not full. The oracle is eager."""
    length = 709
    t = leaves(form, rows=length, keys=length, batch=2, heads=1, value=3)
    u = double(t)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[0, 601:] = False
    mask[1, [5, 400]] = False
    want = eager(form, u, mask, is_causal)
    compare_with_gradients(attend(make(form, t), t["v"], mask, is_causal), want, t, u, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck(form):
    t = leaves(form, rows=3, keys=5, heads=2, value=2, dtype=F64)
    mask = holes(keys=5)
    names = list(t)

    def f(*tensors):
        u = dict(zip(names, tensors, strict=True))
        return attend(make(form, u), u["v"], mask, True, query_offset=2)

    # Fast mode looks at every input along a random direction; all gradients are compared with the reference elsewhere.
    assert torch.autograd.gradcheck(f, tuple(t.values()), fast_mode=True)


@pytest.mark.parametrize("frozen", ["v", "others"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_some_inputs_only(form, frozen):
    t = leaves(form)
    u = double(t)
    for leaf in t:
        if (leaf == "v") == (frozen == "v"):
            t[leaf].requires_grad_(False)
    compare = {leaf: x for leaf, x in t.items() if x.requires_grad}
    got = attend(make(form, t), t["v"], holes())
    compare_with_gradients(got, expected(form, u, holes()), compare, u, atol=2e-5, rtol=2e-5)


RANGES = [70.0, 95.0, 103.0, 200.0]
WIDE = ["shared", "shared per example", "inner", "shared + inner, plain sum", "inner learned"]


def wide(form: str, spread: float, grad: bool) -> dict[str, Tensor]:
    """Logits whose rows go from 0 down to -spread, the greatest at the first key, which the mask then hides."""
    t = leaves(form, grad=False)
    ramp = -torch.linspace(0, spread, S)
    for leaf in t:
        if leaf in {"r", "r2", "r4"}:
            t[leaf] = ramp + 0.1 * t[leaf]
        elif leaf in {"q", "h"}:
            t[leaf] = torch.cat([torch.ones(B, H, T, 1), 0.1 * t[leaf][..., 1:]], dim=-1)
        elif leaf in {"k", "w"}:
            t[leaf] = torch.cat([ramp[:, None].expand(*t[leaf].shape[:-1], 1), t[leaf][..., 1:]], dim=-1)
    return {leaf: x.clone().requires_grad_(grad) for leaf, x in t.items()}


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("keep", [slice(S - 1, S), slice(1, S)], ids=str)
@pytest.mark.parametrize("spread", RANGES)
@pytest.mark.parametrize("form", WIDE)
def test_scores_of_a_wide_range_under_a_mask(form, spread, keep, is_causal, grad):
    """exp(score - rowmax) underflows at 103 in float32 where a mask leaves small scores only: no NaN, no zeros."""
    t = wide(form, spread, grad)
    u = double(t)
    mask = torch.zeros(B, S)
    mask[:, keep] = 1
    mask[1] = 1
    offset = S - T
    want = expected(form, u, mask, is_causal, offset)
    got = attend(make(form, t), t["v"], mask, is_causal, query_offset=offset)
    if grad:
        # A learned key's gradient is a score's gradient times the ramp, so as much larger as the ramp is.
        compare_with_gradients(got, want, t, u, atol=1e-4 * max(1.0, spread / 10), rtol=1e-4)
    else:
        torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_is_as_good_as_eager_bfloat16(form, is_causal):
    """Error against float32 at most twice that of the plain computation in bfloat16."""
    length = 37
    t = leaves(form, rows=length, keys=length, dtype=torch.bfloat16, grad=False)
    mask = holes(keys=length)
    mask[0, 0] = 1
    exact = expected(form, double(t), mask, is_causal)
    plain = eager(form, t, mask.bool(), is_causal)
    got = attend(make(form, t), t["v"], mask, is_causal)
    assert got.dtype == torch.bfloat16
    error, allowed = (got.double() - exact).abs().max(), (plain.double() - exact).abs().max()
    assert error <= 2 * allowed + 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_autocast_with_gradients(form):
    t = leaves(form, rows=S)
    u = double(t)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = attend(make(form, t), t["v"], holes(), True)
    assert got.isfinite().all()
    want = expected(form, u, holes(), True)
    torch.testing.assert_close(got.double(), want, atol=0.1, rtol=0.1)
    got.float().sum().backward()
    want.sum().backward()
    for leaf, x in t.items():
        assert x.grad.dtype == torch.float32
        scale = u[leaf].grad.abs().max().clamp_min(1e-2)
        assert (x.grad - u[leaf].grad).abs().max() <= 0.1 * scale + 0.05, leaf


@pytest.mark.parametrize("form", FORMS)
def test_dropout_one_gives_zeros(form):
    t = leaves(form)
    out = attend(make(form, t), t["v"], dropout_p=1.0)
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("form", ["shared", "shared + shared", "inner", "outer", "shared + inner", "outer + shared"])
def test_only_shared_weights_share_their_dropout_mask(form, grad):
    """Two examples that are the same in everything."""
    t = leaves(form, batch=1, rows=17, keys=17, grad=False)
    each = ["q", "k", "h", "x", "y", "v"]
    t = {leaf: x.expand(2, *x.shape[1:]).contiguous() if leaf in each else x for leaf, x in t.items()}
    out = attend(make(form, {leaf: x.requires_grad_(grad) for leaf, x in t.items()}), t["v"], dropout_p=0.5).detach()
    assert torch.allclose(out[0], out[1], atol=1e-5) == (form in ("shared", "shared + shared"))


@pytest.mark.parametrize("form", ["shared", "shared per example", "inner", "outer", "shared + inner"])
def test_dropout_keeps_the_mean(form):
    t = leaves(form, rows=3, keys=5, heads=1, value=2, grad=False)
    mask = holes(keys=5)
    mean = torch.stack([attend(make(form, t), t["v"], mask, dropout_p=0.3) for _ in range(1500)]).mean(0)
    want = expected(form, double(t), mask).float()
    # The standard deviation of one weight is 0.65 of it; 1,500 draws leave 1.7 %, and five times that is 8 %.
    torch.testing.assert_close(mean, want, atol=0.09 * t["v"].abs().max().item(), rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_dropout_gradients_use_the_mask_of_the_forward(form):
    t = leaves(form, rows=3, keys=5, heads=2, value=2, dtype=F64)
    names = list(t)

    def f(*tensors):
        torch.manual_seed(3)
        u = dict(zip(names, tensors, strict=True))
        return attend(make(form, u), u["v"], holes(keys=5), dropout_p=0.4)

    assert torch.autograd.gradcheck(f, tuple(t.values()), fast_mode=True)


@pytest.mark.parametrize("form", ["shared", "inner", "outer", "shared + inner"])
def test_dropout_over_several_blocks_uses_the_mask_of_the_forward(form):
    """The output is linear in the values, so Σ g·Y = Σ (∂Y/∂V)ᵀg · V holds if backward drops what forward dropped."""
    t = leaves(form, rows=709, keys=709, heads=2, value=3, dtype=F64)
    out = attend(make(form, t), t["v"], dropout_p=0.25)
    g = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, t["v"], g)
    torch.testing.assert_close((gradient * t["v"]).sum(), (g * out).sum())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SharedLogits(torch.randn(T, S)), r"\(5, 7\).*\(H, T, S\)"),
        (lambda: InnerLogits(torch.randn(H, T, K), torch.randn(B, H, S, K)), r"\(3, 5, 11\).*\(B, H, T, K\)"),
        (lambda: InnerLogits(torch.randn(B, H, T, K), torch.randn(B, H, S, K + 1)), r"\(2, 3, 7, 12\)"),
        (lambda: OuterLogits(torch.randn(B, H, T, 2), torch.randn(B, H, S, 3)), r"\(2, 3, 7, 3\)"),
        (lambda: MixedLogits([]), "at least one"),
        (lambda: MixedLogits([SharedLogits(torch.randn(H, T, S))] * 2, torch.randn(3, H)), r"\(3, 3\)"),
    ],
)
def test_forms_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_shapes_that_do_not_fit_are_refused():
    t = leaves("shared", grad=False)
    with pytest.raises(ValueError, match=r"attention_mask.*\(2, 6\)"):
        attend(SharedLogits(t["r"]), t["v"], torch.ones(B, S - 1))
    with pytest.raises(ValueError, match=rf"{S}"):
        attend(SharedLogits(t["r"][..., :-1]), t["v"])
    with pytest.raises(ValueError, match="value"):
        attend(SharedLogits(t["r"]), t["v"][0])
    # Also where their batch is the number of heads.
    with pytest.raises(ValueError, match=r"\(3, 3, 5, 7\).*B and H"):
        attend(SharedLogits(torch.zeros(H, H, T, S)), t["v"])
    with pytest.raises(ValueError, match=r"query_offset=-1.*at least 0"):
        attend(SharedLogits(t["r"]), t["v"], is_causal=True, query_offset=-1)
    for p in (-0.1, 1.5):
        with pytest.raises(ValueError, match=str(p)):
            attend(SharedLogits(t["r"]), t["v"], dropout_p=p)
    with pytest.raises(TypeError, match="Tensor"):
        attend(t["r"], t["v"])


@pytest.mark.parametrize("rows", [1, T])
@pytest.mark.parametrize("sizes", [{"keys": S + 3}, {"heads": 1}, {"batch": B + 1}, {"rows": 3}], ids=str)
def test_terms_that_do_not_fit_are_refused(sizes, rows):
    """Of a whole sequence or a decoding step."""
    t, other = leaves("shared", rows=rows), leaves("inner", **{"rows": rows, **sizes})
    with pytest.raises(ValueError, match="got logits of shape"):
        attend(MixedLogits([make("r", t), make("q k", other)]), t["v"], torch.ones(B, S))


@pytest.mark.parametrize("scores", [torch.float32, F64])
@pytest.mark.parametrize("values", [torch.float32, F64])
@pytest.mark.parametrize("masked", [True, False])
def test_scores_and_values_of_other_dtypes(scores: torch.dtype, values: torch.dtype, masked: bool) -> None:
    r, v = torch.randn(H, S, S, dtype=scores, requires_grad=True), torch.randn(B, H, S, V, dtype=values)
    v.requires_grad_()
    mask = (torch.arange(S) < torch.tensor([[S], [3]])) if masked else None
    attend(SharedLogits(r), v, mask).square().sum().backward()
    wide_r, wide_v = r.detach().double().requires_grad_(), v.detach().double().requires_grad_()
    attend(SharedLogits(wide_r), wide_v, mask).square().sum().backward()
    assert (r.grad.dtype, v.grad.dtype) == (scores, values)
    torch.testing.assert_close(r.grad.double(), wide_r.grad, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(v.grad.double(), wide_v.grad, atol=1e-4, rtol=1e-4)
