"""Layers are timed, and their bytes counted."""

import pytest
import torch
from torch import nn

from synthesizer_lab.benchmark.harness import Contender, measure_memory
from synthesizer_lab.benchmark.layers import MASKS, VARIANTS, Case, build, measure


@pytest.mark.parametrize("mask", MASKS)
def test_every_variant_is_timed(mask: str) -> None:
    found = measure(Case(2, 24, mask, width=16, heads=2), VARIANTS, repeats=1)
    assert [each["name"] for each in found] == ["mha", "sdpa", *VARIANTS]
    assert found[0]["ratio"] == (1, 1, 1)
    assert all(record["mask"] == mask and record["dtype"] == "float32" for record in found)


@pytest.mark.parametrize("mask", MASKS)
def test_the_peers_agree(mask: str) -> None:
    case = Case(2, 12, mask, width=16, heads=2)
    mha, sdpa = build(case, "mha"), build(case, "sdpa")
    x, real, _ = case.inputs()
    weights = dict(mha.module.named_parameters())
    out = {f"out.{name}": weights[f"out_proj.{name}"] for name in ("weight", "bias")}
    inputs = {f"inputs.0.{name}": weights[f"in_proj_{name}"] for name in ("weight", "bias")}
    sdpa.module.load_state_dict({**inputs, **out})
    torch.testing.assert_close(sdpa.call(x, real), mha.call(x, real), atol=1e-5, rtol=1e-4)


def test_memory_counts_what_is_allocated() -> None:
    module = nn.Linear(100, 50, bias=False)

    def call(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        torch.empty(10_000, dtype=torch.float64)
        return module(x)

    x = torch.zeros(2, 100, requires_grad=True)
    contender = Contender(module, call)
    # Only the output is kept; the gradient of the weight does not count.
    assert measure_memory(contender, (x, None, torch.ones(2, 50)), training=True) == (80_000, 400)
    assert measure_memory(contender, (x, None, torch.ones(2, 50)), training=False) == (80_000, 0)
