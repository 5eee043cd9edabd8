"""Batches by token budget, and the clock."""

import itertools
import time

import numpy as np
import pytest
import torch

from synthetic_attention.data.examples import token_batches
from synthetic_attention.training.callbacks import TrainingClock
from synthetic_attention.training.trainer import TokenBatchSampler

LENGTHS = np.random.default_rng(0).integers(3, 40, size=(101, 2))


def test_batches_keep_to_the_budget_and_cover_all() -> None:
    costs = LENGTHS.sum(axis=1)
    batches = token_batches(costs, range(101), budget=150)
    assert sorted(itertools.chain(*batches)) == list(range(101))
    assert max(costs[batch].sum() for batch in batches) <= 150


def test_what_exceeds_the_budget_is_a_batch_by_itself() -> None:
    assert token_batches([5, 99, 5], [0, 1, 2], budget=10) == [[0], [1], [2]]


def test_every_pass_covers_all_in_another_order() -> None:
    sampler = TokenBatchSampler(LENGTHS, 200, seed=1, num_batches=10**9)
    stream = iter(sampler)
    passes = []
    for _ in range(2):
        batches: list[list[int]] = []
        while sum(map(len, batches)) < 101:
            batches.append(next(stream))
        assert sorted(itertools.chain(*batches)) == list(range(101))
        passes.append(batches)
    assert passes[0] != passes[1]
    assert {frozenset(batch) for batch in passes[0]} != {frozenset(batch) for batch in passes[1]}


def test_the_stream_is_a_function_of_the_seed() -> None:
    streams = [list(TokenBatchSampler(LENGTHS, 200, seed, num_batches=53)) for seed in (1, 1, 2)]
    assert len(streams[0]) == 53
    assert streams[0] == streams[1] != streams[2]


def test_batches_waste_little_on_padding() -> None:
    padded = sum(
        len(batch) * LENGTHS[batch].max(axis=0).sum()
        for batch in itertools.islice(TokenBatchSampler(LENGTHS, 400, seed=1, num_batches=10**6), 13)
    )
    assert padded < 1.5 * 400 * 13


def test_the_clock_counts_between_start_and_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 10.0, 100.0, 107.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = TrainingClock(torch.device("cpu"), seconds=5)
    for expected in (15, 22):
        clock.start()
        clock.start()
        clock.stop()
        clock.stop()
        assert clock.seconds == expected
