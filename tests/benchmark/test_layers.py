"""Layers and encoders are timed in turns, and their bytes counted."""

import time
from functools import partial

import pytest
import torch
from torch import nn

from synthesizer_lab.benchmark.harness import Contender, measure_memory, time_turns
from synthesizer_lab.benchmark.layers import VARIANTS, build_layer, measure_encoders, measure_layers
from synthesizer_lab.benchmark.peers import MASKS, Case
from synthesizer_lab.benchmark.tables import records


@pytest.mark.parametrize("mask", MASKS)
def test_every_variant_is_timed(mask: str) -> None:
    found = measure_layers(Case(2, 24, mask, width=16, heads=2), VARIANTS, repeats=1)
    assert [each.name for each in found] == ["mha", "sdpa", "t5", *VARIANTS]
    assert found[0].ratio == (1, 1, 1)
    assert all(record["mask"] == mask and record["dtype"] == "float32" for record in records(found))


@pytest.mark.parametrize("mask", MASKS)
def test_the_peers_agree(mask: str) -> None:
    case = Case(2, 12, mask, width=16, heads=2)
    mha, sdpa, t5 = (build_layer(case, name) for name in ("mha", "sdpa", "t5"))
    x, real, _ = case.inputs()
    weights = dict(mha.module.named_parameters())
    nn.init.zeros_(weights["in_proj_bias"])
    query, key, value = weights["in_proj_weight"].detach().chunk(3)
    out = {f"out.{name}": weights[f"out_proj.{name}"] for name in ("weight", "bias")}
    inputs = {f"inputs.0.{name}": weights[f"in_proj_{name}"] for name in ("weight", "bias")}
    sdpa.module.load_state_dict({**inputs, **out})
    # T5 has neither biases nor a scale.
    t5.module.load_state_dict(
        {"q.weight": query / 8**0.5, "k.weight": key, "v.weight": value, "o.weight": weights["out_proj.weight"]}
    )
    expected = mha.call(x, real)
    for peer in (sdpa, t5):
        torch.testing.assert_close(peer.call(x, real), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.cuda
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mask", MASKS)
def test_layers_on_a_gpu(mask: str) -> None:
    case = Case(4, 256, mask, 256, 4, torch.bfloat16, "cuda")
    results = {result.name: result for result in measure_layers(case, VARIANTS, repeats=3, memory=True)}
    assert [*results] == ["sdpa", "mha", "t5", *VARIANTS]
    assert all((result.peak or 0) > 0 and result.milliseconds for result in results.values())


def test_a_speedup_over_the_baseline_is_above_one() -> None:
    calls: list[str] = []

    def slow() -> None:
        calls.append("slow")
        time.sleep(0.02)

    times = time_turns({"slow": slow, "fast": partial(calls.append, "fast")}, repeats=3, warmup=1)
    assert calls == ["slow", "fast"] * 4
    (_, milliseconds, _), ratio = times["slow"]
    assert milliseconds >= 20
    assert ratio == (1, 1, 1)
    assert times["fast"][1][0] > 1


def test_memory_counts_what_is_allocated() -> None:
    module = nn.Linear(100, 50, bias=False)

    def call(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        torch.empty(10_000, dtype=torch.float64)
        return module(x)

    x = torch.zeros(2, 100, requires_grad=True)
    contender = Contender("linear", module, call)
    # Only the output is kept; the gradient of the weight does not count.
    assert measure_memory(contender, (x, None, torch.ones(2, 50)), training=True) == (80_000, 400)
    assert measure_memory(contender, (x, None, torch.ones(2, 50)), training=False) == (80_000, 0)


def test_encoders_are_timed_and_their_memory_measured() -> None:
    case = Case(2, 16, "padded", width=16, heads=2)
    results = {result.name: result for result in measure_encoders(case, 2, ["random"], repeats=1)}
    assert [*results] == ["vanilla", "nn.TransformerEncoder", "random"]
    assert results["vanilla"].ratio == (1, 1, 1)
    assert all(0 < (result.kept or 0) <= (result.peak or 0) for result in results.values())
    # Two layers: vanilla has queries and keys where random has H·N².
    difference = (results["vanilla"].parameters or 0) - (results["random"].parameters or 0)
    assert difference == 2 * (2 * (16 * 16 + 16) - 2 * 16 * 16)
