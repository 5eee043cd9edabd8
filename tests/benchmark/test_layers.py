"""The benchmarks measure what they say: in turns, checked against slow twins, with bytes counted as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from synthetic_attention.benchmark.attention import FLOOR, VARIANTS, time_case
from synthetic_attention.benchmark.layers import BASELINE, MASKS, Case, build_layers, check
from synthetic_attention.benchmark.memory import measure_case, peak_bytes
from synthetic_attention.benchmark.tables import draw_sweep, records
from synthetic_attention.benchmark.timing import quartiles, take_turns

PURE = ("random", "fixed_random", "factorized_random", "dense", "factorized_dense")
SMALL = Case(2, 24, width=16, heads=2)


def test_all_take_turns() -> None:
    order: list[str] = []
    times = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3, warmup=1)
    assert order == ["a", "b"] * 4
    assert {name: len(taken) for name, taken in times.items()} == {"a": 3, "b": 3}
    assert quartiles([1, 2, 3, 4, 5]) == (2, 3, 4)


@pytest.mark.parametrize("mask", MASKS)
def test_every_variant_is_checked_and_timed(mask: str) -> None:
    case = Case(2, 24, mask, width=16, heads=2)
    results = {result.name: result for result in time_case(case, VARIANTS, repeats=1)}
    assert set(results) == {BASELINE, "sdpa", "t5", *VARIANTS, *([FLOOR] if mask == "full" else [])}
    assert results[BASELINE].ratio == (1, 1, 1)
    for name in VARIANTS:
        difference = results[name].difference
        assert difference is not None
        assert 0 <= difference < 1e-4
    assert all(record["mask"] == mask and record["dtype"] == "float32" for record in records(list(results.values())))


def test_the_peers_attend_alike() -> None:
    for mask in MASKS:
        case = Case(2, 12, mask, width=16, heads=2)
        mha, sdpa, t5 = build_layers(case, [])
        x, real, _ = case.inputs()
        with torch.no_grad():
            sdpa.module.qkv.weight.copy_(mha.module.in_proj_weight)  # type: ignore[operator, union-attr]
            sdpa.module.qkv.bias.copy_(mha.module.in_proj_bias)  # type: ignore[operator, union-attr]
            sdpa.module.out.load_state_dict(mha.module.out_proj.state_dict())  # type: ignore[operator, union-attr]
            query, key, value = mha.module.in_proj_weight.chunk(3)  # type: ignore[operator, union-attr]
            # T5 has neither biases nor a scale.
            t5.module.q.weight.copy_(query / 8**0.5)  # type: ignore[operator, union-attr]
            t5.module.k.weight.copy_(key)  # type: ignore[operator, union-attr]
            t5.module.v.weight.copy_(value)  # type: ignore[operator, union-attr]
            t5.module.o.weight.copy_(mha.module.out_proj.weight)  # type: ignore[operator, union-attr]
            mha.module.in_proj_bias.zero_()  # type: ignore[operator, union-attr]
            sdpa.module.qkv.bias.zero_()  # type: ignore[operator, union-attr]
            outputs = [layer.call(x, real) for layer in (mha, sdpa, t5)]
        for output in outputs[1:]:
            torch.testing.assert_close(output, outputs[0], atol=1e-5, rtol=1e-4)


def test_a_wrong_layer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (*_, random) = build_layers(SMALL, ["random"])
    check(random, SMALL)
    real = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b, **out: real(a, b * 1.01, **out))
    with pytest.raises(RuntimeError, match="random differs from its slow twin by"):
        check(random, SMALL)


def test_peak_bytes_counts_what_is_allocated() -> None:
    module = nn.Linear(100, 50, bias=False)

    def step() -> None:
        first = torch.empty(1000, dtype=torch.float32)
        del first
        second, third = torch.empty(300, dtype=torch.float64), torch.empty(100)
        module.weight.grad = torch.zeros_like(module.weight)
        del second, third

    assert peak_bytes(step, module) == (4000, 0)


def test_nothing_of_batch_times_heads_times_length_squared_is_kept() -> None:
    case = Case(4, 512, width=64, heads=4)
    whole = case.batch * case.heads * case.length**2 * 4
    results = {result.name: result for result in measure_case(case, VARIANTS, twins=True)}
    for name in VARIANTS:
        assert results[name].kept < whole / 2
        assert results[f"{name} (twin)"].kept > (0.1 if name.endswith("random") else 1) * whole


def test_pure_variants_need_no_more_memory_than_fused_attention() -> None:
    results = {result.name: result for result in measure_case(Case(8, 256, width=256, heads=4), PURE)}
    for name in PURE:
        assert results[name].peak <= results[BASELINE].peak


def test_inference_keeps_nothing() -> None:
    results = measure_case(SMALL, ("random", "dense+vanilla"), training=False)
    assert all(result.kept == 0 < result.peak for result in results)


def test_a_picture_of_time_and_memory(tmp_path: Path) -> None:
    cases = [Case(4, 8, width=16, heads=2), Case(2, 16, width=16, heads=2)]
    timings = [timing for case in cases for timing in time_case(case, ("random",), repeats=1)]
    memories = [memory for case in cases for memory in measure_case(case, ("random",))]
    figure = draw_sweep(timings, memories, "title")
    figure.savefig(tmp_path / "sweep.png")
    assert {line.get_label() for line in figure.axes[0].get_lines()} == {BASELINE, "sdpa", "t5", "random", FLOOR}
    assert figure.axes[1].get_yscale() == "log"
