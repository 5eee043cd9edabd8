"""Numbers of ±1e4 in float16 and bfloat16 on a CPU: finite where float64 is, although products of two are not."""

import pytest
import torch

from layers import FUNCTIONS, MIXTURES
from synthetic_attention import InnerLogits, MixedLogits, OuterLogits, SharedLogits, attend
from synthetic_attention.attention import build

B, H, T, S, D = 2, 3, 5, 7, 4
BASELINES = ["lightweight_conv", "dynamic_conv", "linformer", "local_dense"]


def check_finite(results: list[torch.Tensor | None], exact: list[torch.Tensor | None]) -> None:
    for got, want in zip(results, exact, strict=True):
        if got is not None and want is not None:
            representable = want.abs() <= torch.finfo(got.dtype).max
            assert bool((got.isfinite() | ~representable).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, T], ids=["a decoding step", "all rows"])
@pytest.mark.parametrize("forms", ["i", "o", "s", "si", "so", "io", "ss", "sio"])
def test_attend(forms: str, rows: int, dtype: torch.dtype) -> None:
    shapes = {"s": [(H, rows, S)], "i": [(B, H, rows, D), (B, H, S, D), (H, S)], "o": [(B, H, rows, 3)] * 2}
    makers = {"s": SharedLogits, "i": InnerLogits, "o": OuterLogits}
    value = torch.randn(B, H, S, D).sign() * 1e4
    factors = [[5e4 * torch.randn(shape).sign() for shape in shapes[form]] for form in forms]
    mask = torch.ones(B, S)
    mask[0, 4:] = 0

    def run(dtype: torch.dtype) -> list[torch.Tensor | None]:
        inputs = [value.to(dtype).requires_grad_()]
        terms = []
        for form, tensors in zip(forms, factors, strict=True):
            inputs += (own := [x.to(dtype).requires_grad_() for x in tensors])
            terms.append(makers[form](*own))
        y = attend(terms[0] if len(terms) == 1 else MixedLogits(terms), inputs[0], mask)
        y.backward(torch.full_like(y, 1e-3))
        return [y, *(x.grad for x in inputs)]

    check_finite(run(dtype), run(torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [*FUNCTIONS, *MIXTURES, *BASELINES])
def test_layers(name: str, dtype: torch.dtype) -> None:
    layer = build(name, 8, 2, 8, is_causal=False)
    for key, parameter in layer.named_parameters():
        if key.endswith(("table", "offsets")):
            torch.nn.init.normal_(parameter, std=1e4)
        elif key.endswith("_factor"):
            torch.nn.init.constant_(parameter, 300.0)
    layer, x, mask = layer.to(dtype), torch.randn(2, T, 8).sign() * 1e4, torch.ones(2, T)
    mask[0, :2] = 0
    exact = build(name, 8, 2, 8, is_causal=False).double()
    exact.load_state_dict(layer.double().state_dict())
    layer = layer.to(dtype)
    for rows in (T, 1):
        results = []
        for module, kind in ((layer, dtype), (exact, torch.float64)):
            module.zero_grad()
            inputs = x[:, :rows].to(kind).requires_grad_()
            y = module(inputs, mask if rows == T else None)
            (y * 1e-3).sum().backward()
            sums, weights = module(inputs, need_weights=True)
            assert not weights.requires_grad or torch.autograd.grad(sums.sum(), weights)[0].dtype == kind
            results.append([y, weights, inputs.grad, *(parameter.grad for parameter in module.parameters())])
        check_finite(*results)
