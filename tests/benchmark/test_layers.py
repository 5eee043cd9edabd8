"""Layers and encoders are timed in turns, checked against the reference, and their bytes counted."""

import time
from functools import partial

import pytest
import torch
from torch import nn

from synthetic_attention.benchmark.harness import Contender, measure_memory, time_turns
from synthetic_attention.benchmark.layers import (
    BASELINE,
    MASKS,
    VARIANTS,
    Case,
    build_layers,
    check,
    measure_encoders,
    measure_layers,
)
from synthetic_attention.benchmark.tables import records

PURE = ("random", "fixed_random", "factorized_random", "dense", "factorized_dense")
SMALL = Case(2, 24, width=16, heads=2)


@pytest.mark.parametrize("mask", MASKS)
def test_every_variant_is_checked_and_timed(mask: str) -> None:
    case = Case(2, 24, mask, width=16, heads=2)
    results = {result.name: result for result in measure_layers(case, VARIANTS, repeats=1)}
    assert set(results) == {BASELINE, "sdpa", "t5", *VARIANTS}
    assert results[BASELINE].ratio == (1, 1, 1)
    for name in VARIANTS:
        difference = results[name].difference
        assert difference is not None
        assert 0 <= difference < 1e-4
    assert all(record["mask"] == mask and record["dtype"] == "float32" for record in records(list(results.values())))


@pytest.mark.parametrize("mask", MASKS)
def test_the_peers_agree(mask: str) -> None:
    case = Case(2, 12, mask, width=16, heads=2)
    mha, sdpa, t5 = build_layers(case, [])
    x, real, _ = case.inputs()
    weights = dict(mha.module.named_parameters())
    nn.init.zeros_(weights["in_proj_bias"])
    query, key, value = weights["in_proj_weight"].detach().chunk(3)
    out = {f"out.{name}": weights[f"out_proj.{name}"] for name in ("weight", "bias")}
    sdpa.module.load_state_dict({"qkv.weight": weights["in_proj_weight"], "qkv.bias": weights["in_proj_bias"], **out})
    # T5 has neither biases nor a scale.
    t5.module.load_state_dict(
        {"q.weight": query / 8**0.5, "k.weight": key, "v.weight": value, "o.weight": weights["out_proj.weight"]}
    )
    expected = mha.call(x, real)
    for peer in (sdpa, t5):
        torch.testing.assert_close(peer.call(x, real), expected, atol=1e-5, rtol=1e-4)


def test_a_wrong_layer_is_detected() -> None:
    (*_, random) = build_layers(SMALL, ["random"])
    wrong = Contender("random", random.module, lambda x, mask: 1.01 * random.call(x, mask))
    check(random, SMALL)
    with pytest.raises(RuntimeError, match="random"):
        check(wrong, SMALL)


def test_a_speedup_over_the_baseline_is_above_one() -> None:
    calls: list[str] = []

    def slow() -> None:
        calls.append("slow")
        time.sleep(0.02)

    times = time_turns({"slow": slow, "fast": partial(calls.append, "fast")}, "slow", repeats=3, warmup=1)
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


def test_no_matrix_per_example_and_head_is_kept() -> None:
    case = Case(4, 256, width=32, heads=4)
    matrices = case.batch * case.heads * case.length**2 * 4
    results = {result.name: result for result in measure_layers(case, VARIANTS, memory=True)}
    for name in VARIANTS:
        kept = results[name].kept
        assert kept is not None
        assert 0 < kept < matrices / 2
    kept = results["t5"].kept
    assert kept is not None
    assert kept > matrices


def test_pure_variants_need_no_more_memory_than_fused_attention() -> None:
    results = {result.name: result for result in measure_layers(Case(8, 128, width=128, heads=4), PURE, memory=True)}
    peaks = {name: result.peak or 0 for name, result in results.items()}
    assert all(0 < peaks[name] <= peaks[BASELINE] for name in PURE)


def test_encoders_are_timed_and_their_memory_measured() -> None:
    case = Case(2, 16, "padded", width=16, heads=2)
    results = {result.name: result for result in measure_encoders(case, 2, ["random"], repeats=1)}
    assert [*results] == ["vanilla", "nn.TransformerEncoder", "random"]
    assert results["vanilla"].ratio == (1, 1, 1)
    assert all(0 < (result.kept or 0) <= (result.peak or 0) for result in results.values())
    # Two layers: vanilla has queries and keys where random has H·N².
    difference = (results["vanilla"].parameters or 0) - (results["random"].parameters or 0)
    assert difference == 2 * (2 * (16 * 16 + 16) - 2 * 16 * 16)
