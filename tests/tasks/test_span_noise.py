"""Span corruption: nothing is lost, the statistics are T5's, examples fit exactly."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synthetic_attention.tasks.span_noise import Packing, SpanLengths, corrupt, noise_mask, restore

FIRST = 999


def _text(length: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 300, length).astype(np.int32)


def test_the_example_of_the_documentation() -> None:
    tokens = np.arange(8, dtype=np.int32)
    mask = np.array([0, 0, 1, 1, 0, 0, 1, 1], dtype=bool)
    inputs, targets = corrupt(tokens, mask, FIRST)
    assert inputs.tolist() == [0, 1, 999, 4, 5, 998]
    assert targets.tolist() == [999, 2, 3, 998, 6, 7]
    assert inputs.dtype == targets.dtype == np.int32
    assert restore(inputs, targets, FIRST, 2).tolist() == [*range(8)]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.integers(0, 80), st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_inputs_and_targets_joined_are_the_text(spans: int, further: int, kept_further: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = SpanLengths(2 * spans + further + kept_further, spans + further, spans)
    tokens = _text(lengths.raw, rng)
    mask = noise_mask(lengths, rng)
    # As many spans are cut out as are kept: the text begins with one that is kept and ends with one that is not.
    assert spans == (np.diff(mask.astype(np.int8), prepend=0) == 1).sum()
    assert (len(mask), mask.sum()) == (lengths.raw, lengths.noise)
    assert not mask[0]
    assert mask[-1]
    inputs, targets = corrupt(tokens, mask, FIRST)
    np.testing.assert_array_equal(restore(inputs, targets, FIRST, spans), tokens)
    sentinels = [FIRST - span for span in range(spans)]
    for side, kept in ((inputs, ~mask), (targets, mask)):
        assert [token for token in side.tolist() if token > 300] == sentinels
        assert [token for token in side.tolist() if token < 300] == tokens[kept].tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 99))
def test_any_mask_can_be_undone(noise: list[bool], seed: int) -> None:
    mask = np.array(noise)
    tokens = _text(len(noise), np.random.default_rng(seed))
    inputs, targets = corrupt(tokens, mask, FIRST)
    spans = int((np.diff(mask.astype(np.int8), prepend=0) == 1).sum())
    np.testing.assert_array_equal(restore(inputs, targets, FIRST, spans), tokens)


PACKINGS = [(512, 0.15, 3.0), (256, 0.15, 3.0), (114, 0.15, 3.0), (40, 0.15, 3.0), (512, 0.15, 10.0), (64, 0.5, 2.0)]


@pytest.mark.parametrize(("inputs", "density", "span"), PACKINGS)
def test_density_and_span_length_over_a_hundred_thousand_tokens(inputs: int, density: float, span: float) -> None:
    packing, rng = Packing(inputs, density, span), np.random.default_rng(5)
    count = packing.count(100_000)
    masks = [noise_mask(packing.lengths(index), rng) for index in range(count)]
    noise, raw = sum(int(mask.sum()) for mask in masks), sum(len(mask) for mask in masks)
    spans = sum(int((np.diff(mask.astype(np.int8), prepend=0) == 1).sum()) for mask in masks)
    assert 100_000 - 2 * inputs < raw <= 100_000
    assert noise / raw == pytest.approx(density, rel=0.001)
    assert noise / spans == pytest.approx(span, rel=0.001)


def test_spans_are_spread_evenly() -> None:
    rng = np.random.default_rng(6)
    mean = np.mean([noise_mask(SpanLengths(100, 15, 5), rng) for _ in range(4000)], axis=0)
    # The first token is always kept, the last never; between them noise is everywhere about as likely.
    assert (mean[0], mean[-1]) == (0, 1)
    assert abs(mean[10:90] - mean[10:90].mean()).max() < 0.03
    lengths = [np.flatnonzero(~noise_mask(SpanLengths(60, 9, 3), rng)[::-1])[0] for _ in range(4000)]
    # 9 tokens in 3 spans: C(8, 2) = 28 ways, equally likely; the last has n tokens in 8 − n of them.
    counts = np.bincount(lengths, minlength=8)[1:8] / 4000
    np.testing.assert_allclose(counts, np.arange(7, 0, -1) / 28, atol=0.03)


@settings(max_examples=100, deadline=None)
@given(st.integers(20, 600), st.floats(0.01, 0.45), st.floats(1.0, 12.0), st.integers(0, 60))
def test_packed_examples_fit_exactly(inputs_length: int, density: float, span: float, index: int) -> None:
    try:
        packing = Packing(inputs_length, density, span)
    except ValueError:
        # Too short for a span, or too many spans; which those are is tested below.
        assume(False)
    lengths = packing.lengths(index)
    # Examples follow each other without a gap.
    assert packing.start(index + 1) == packing.start(index) + lengths.raw
    assert lengths.inputs == inputs_length
    assert lengths.spans <= packing.most_spans
    assert lengths.targets <= packing.most_targets
    assert packing.table(index + 1)[-1].tolist() == [lengths.inputs, lengths.targets]
    mask = noise_mask(lengths, np.random.default_rng(inputs_length))
    inputs, targets = corrupt(np.arange(lengths.raw, dtype=np.int32), mask, 5000)
    # With </s> to come; so nothing is cut off, and the last sentinel is on both sides.
    assert (len(inputs) + 1, len(targets) + 1) == (lengths.inputs, lengths.targets)
    assert inputs.min() >= 0
    assert inputs[-1] == 5000 - lengths.spans + 1
    assert inputs[-1] in targets


def test_lengths_are_within_one_of_those_of_t5() -> None:
    packing = Packing(512)
    found = {tuple(vars(packing.lengths(index)).values()) for index in range(1000)}
    # T5: 568 tokens, of which 85 in 28 spans.
    assert found == {(568, 85, 28), (568, 86, 29), (567, 84, 28), (567, 85, 29)}
    assert (packing.most_spans, packing.most_targets) == (29, 116)


def test_how_many_examples_a_text_has() -> None:
    packing = Packing(40)
    for tokens in range(packing.start(30)):
        count = packing.count(tokens)
        assert packing.start(count) <= tokens < packing.start(count + 1)


def test_the_same_seed_gives_the_same_noise() -> None:
    masks = [noise_mask(SpanLengths(568, 85, 28), np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert (masks[0] == masks[1]).all()
    assert (masks[0] != masks[2]).any()


def test_what_cannot_be_is_refused() -> None:
    for density in (0, 1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="expected more than 0 and less than 1"):
            Packing(512, density)
    for span in (0.5, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"got mean_span_length=.*; expected at least 1"):
            Packing(512, mean_span_length=span)
    with pytest.raises(ValueError, match="got inputs_length=18; expected at least 19, for one span of 3 tokens"):
        Packing(18)
    assert Packing(19).lengths(0).spans == 1
    with pytest.raises(ValueError, match="would have 90 spans; expected at most half as many"):
        Packing(101, 0.9, 1)
    for raw, noise, spans in ((10, 3, 0), (10, 3, 4), (10, 8, 3)):
        with pytest.raises(ValueError, match=f"got {spans} spans of {noise} tokens in all"):
            SpanLengths(raw, noise, spans)
    with pytest.raises(ValueError, match=r"got a mask of \(2,\) for tokens of \(3,\)"):
        corrupt(np.zeros(3, dtype=np.int32), np.zeros(2, dtype=bool), 9)


def test_tokens_that_are_sentinels_are_refused() -> None:
    mask = np.array([False, True, False, True])
    with pytest.raises(ValueError, match=r"2 spans take the ids 98 … 99; expected more sentinels"):
        corrupt(np.array([1, 2, 98, 3], dtype=np.int32), mask, 99)
    # Ids below those that are needed, and above the first sentinel, are tokens.
    inputs, _ = corrupt(np.array([97, 2, 100, 3], dtype=np.int32), mask, 99)
    assert inputs.tolist() == [97, 99, 100, 98]
    with pytest.raises(ValueError, match="expected more sentinels, or a shorter text"):
        corrupt(np.array([5, 6, 7, 8], dtype=np.int32), mask, 0)


def test_a_lost_sentinel_is_noticed() -> None:
    inputs, targets = np.array([1, 99, 2, 98]), np.array([99, 5, 98, 6])
    assert restore(inputs, targets, 99, 2).tolist() == [1, 5, 2, 6]
    with pytest.raises(ValueError, match=r"got inputs with the sentinels \[99\]; expected \[99, 98\]"):
        restore(inputs[:-1], targets, 99, 2)
    with pytest.raises(ValueError, match=r"got targets with the sentinels \[98, 99\]"):
        restore(inputs, targets[[2, 3, 0, 1]], 99, 2)
