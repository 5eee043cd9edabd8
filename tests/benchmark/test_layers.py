"""Layers and encoders are timed in turns, checked against the reference, and their bytes counted."""

import time
from functools import partial

import pytest
import torch
from torch import nn

from synthesizer_lab.benchmark import layers
from synthesizer_lab.benchmark.accuracy import Accuracy, check, reduced
from synthesizer_lab.benchmark.cases import MASKS, Case
from synthesizer_lab.benchmark.flops import count_flops, matrix_rate
from synthesizer_lab.benchmark.harness import Contender, Measurement, measure_memory, time_turns
from synthesizer_lab.benchmark.layers import VARIANTS, build_layer, measure_encoders, measure_layers
from synthesizer_lab.benchmark.tables import records, tables
from synthesizer_lab.errors import UserError

PURE = ("random", "fixed_random", "factorized_random", "dense", "factorized_dense")
SMALL = Case(2, 24, width=16, heads=2)


@pytest.mark.parametrize("mask", MASKS)
def test_every_variant_is_checked_and_timed(mask: str) -> None:
    case = Case(2, 24, mask, width=16, heads=2)
    results = {result.name: result for result in measure_layers(case, VARIANTS, repeats=1)}
    assert set(results) == {"mha", "sdpa", "t5", *VARIANTS}
    assert results["mha"].ratio == (1, 1, 1)
    for name in VARIANTS:
        difference = results[name].difference
        assert difference is not None
        assert 0 <= difference < 1e-4
    assert all(record["mask"] == mask and record["dtype"] == "float32" for record in records(list(results.values())))


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


def test_a_wrong_layer_is_detected() -> None:
    right = build_layer(SMALL, "random")
    layer = build_layer(SMALL, "random")

    def call(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        # The reference is computed without fused kernels.
        return layer.call(x, mask) * (1.001 if torch.backends.cuda.flash_sdp_enabled() else 1)

    wrong = Contender("random", layer.module, call)
    assert check(right, SMALL).is_accepted
    accuracy = check(wrong, SMALL)
    assert not accuracy.is_accepted
    assert accuracy.error == pytest.approx(1e-3, rel=0.1)


def test_an_inexact_variant_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "check", lambda layer, case: Accuracy(0.5, layer.name != "random"))
    results = {result.name: result for result in measure_layers(SMALL, ["random", "dense"], repeats=1)}
    assert (results["random"].problem, results["random"].milliseconds) == ("inexact", None)
    assert results["dense"].problem is None
    assert results["random"].difference == results["dense"].difference == 0.5


def test_errors_are_measured_where_float64_matrices_fit() -> None:
    assert reduced(SMALL) == SMALL
    few = reduced(Case(128, 512, width=1024, heads=16))
    assert (few.batch, few.length) == (64, 512)
    short = reduced(Case(4, 16384, width=1024, heads=16))
    assert (short.batch, short.length) == (1, 4096)


@pytest.mark.parametrize(
    ("name", "error"), [("t5", torch.OutOfMemoryError("CUDA out of memory")), ("mha", MemoryError())]
)
def test_a_layer_without_memory_does_not_end_the_run(
    name: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Contender.step

    def fail(layer: Contender, *args: object, **options: object) -> int:
        if layer.name == name:
            raise error
        return step(layer, *args, **options)

    monkeypatch.setattr(Contender, "step", fail)
    found = measure_layers(SMALL, ["random"], repeats=1, memory=True)
    results = {result.name: result for result in found}
    assert [result.problem for result in found if result.problem] == ["out of memory"]
    assert results[name].problem == "out of memory"
    # Without the baseline there are times, but no ratios.
    assert results["random"].milliseconds is not None
    assert (results["random"].ratio is None) == (name == "mha")
    table, *_ = tables(found)
    assert "out of memory" in list(table.columns[1].cells)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("name", "projections", "pairs", "pairs_backward"),
    [
        *[(name, 4, 2, 4) for name in ("mha", "sdpa", "t5", "vanilla", "random+vanilla")],
        *[("random", 2, 1, 2), ("fixed_random", 2, 1, 1), ("random:1/vanilla:1", 3, 1.5, 3)],
        *[("dense", 3, 2, 4), ("dense+vanilla", 5, 3, 6)],
    ],
)
def test_flops_are_those_of_the_formula(
    name: str, projections: int, pairs: float, pairs_backward: float, training: bool
) -> None:
    batch, length, width = 3, 24, 16
    tokens = {"full": 3 * 24, "causal": 3 * 24, "padded": 12 + 18 + 24}
    visible = {"full": 3 * 24**2, "causal": 3 * 24 * 25 / 2, "padded": 12**2 + 18**2 + 24**2}
    for mask in MASKS:
        case = Case(batch, length, mask, width=width, heads=2)
        counted = count_flops(partial(build_layer, name=name), case, training)
        pairs_all = pairs + (pairs_backward if training else 0)
        expected = (3 if training else 1) * projections * 2 * tokens[mask] * width**2 + 2 * pairs_all * visible[
            mask
        ] * width
        assert counted == pytest.approx(expected, rel=1e-6), mask


def test_figures_of_an_accelerator_are_in_a_table_of_their_own() -> None:
    case = Case(2, 24, device="cuda")
    times = {"milliseconds": (1, 2, 3), "ratio": (1, 1, 1)}
    found = [
        Measurement("sdpa", case, True, **times, tflops=300.0, share=0.5, backend="flash"),
        Measurement("random", case, True, **times, tflops=420.0, share=0.7, checked=(1, 8)),
        Measurement("t5", case, True, problem="out of memory"),
    ]
    speed, rate = tables(found)
    assert speed.title is not None
    assert "sdpa = 1" in speed.title
    assert isinstance(speed.caption, str)
    assert "24 flash" in speed.caption
    assert "at 8" in speed.caption
    assert list(rate.columns[1].cells) == ["300 (50)", "420 (70)", "out of memory"]
    assert "600" in str(rate.caption)


def test_peers_can_be_chosen() -> None:
    results = measure_layers(SMALL, ["random"], peers=["t5"], repeats=1)
    assert [result.name for result in results] == ["t5", "random"]
    with pytest.raises(UserError, match=r"flex.*mha, sdpa, t5"):
        measure_layers(SMALL, [], peers=["flex"])


@pytest.mark.cuda
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mask", MASKS)
def test_layers_on_a_gpu(mask: str) -> None:
    case = Case(4, 256, mask, 256, 4, torch.bfloat16, "cuda")
    results = {result.name: result for result in measure_layers(case, VARIANTS, repeats=3, memory=True)}
    assert next(iter(results)) == "sdpa"
    assert {"sdpa", "mha", "flex", "t5", *VARIANTS} <= set(results)
    assert not [name for name, result in results.items() if result.problem]
    for result in results.values():
        assert 0 < (result.share or 0) < 1
        assert (result.peak or 0) > 0
    assert results["sdpa"].backend in ("flash", "cudnn", "efficient")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("mask", MASKS)
def test_flex_agrees_with_sdpa(mask: str, device: str) -> None:
    case = Case(3, 200, mask, 64, 2, device=device)
    sdpa, flex = (build_layer(case, name) for name in ("sdpa", "flex"))
    flex.module.load_state_dict(sdpa.module.state_dict())
    x, real, _ = case.inputs()
    # On a CPU FlexAttention has no backward.
    with torch.no_grad():
        torch.testing.assert_close(flex.call(x, real), sdpa.call(x, real), atol=1e-3, rtol=1e-3)


@pytest.mark.cuda
def test_a_product_is_timed_by_events() -> None:
    assert 1e12 < matrix_rate(torch.bfloat16, "cuda") < 1e16


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
    assert all(0 < peaks[name] <= peaks["mha"] for name in PURE)


def test_encoders_are_timed_and_their_memory_measured() -> None:
    case = Case(2, 16, "padded", width=16, heads=2)
    results = {result.name: result for result in measure_encoders(case, 2, ["random"], repeats=1)}
    assert [*results] == ["vanilla", "nn.TransformerEncoder", "random"]
    assert results["vanilla"].ratio == (1, 1, 1)
    assert all(0 < (result.kept or 0) <= (result.peak or 0) for result in results.values())
    # Two layers: vanilla has queries and keys where random has H·N².
    difference = (results["vanilla"].parameters or 0) - (results["random"].parameters or 0)
    assert difference == 2 * (2 * (16 * 16 + 16) - 2 * 16 * 16)
