"""Batches by token budget, and the clock."""

import itertools

import numpy as np

from synthesizer_lab.data.examples import Examples, TokenBatchSampler, token_batches

LENGTHS = np.random.default_rng(0).integers(3, 80, size=101)
EXAMPLES = Examples.of([(np.zeros(length, dtype=np.int32),) for length in LENGTHS])


def test_batches_keep_to_the_budget_and_cover_all() -> None:
    batches = token_batches(LENGTHS, range(101), budget=150)
    assert sorted(itertools.chain(*batches)) == list(range(101))
    assert max(LENGTHS[batch].sum() for batch in batches) <= 150
    # An example over the budget is a batch by itself.
    assert token_batches([5, 99, 5], [0, 1, 2], budget=10) == [[0], [1], [2]]


def test_every_pass_covers_all_in_another_order() -> None:
    sampler = TokenBatchSampler(EXAMPLES, 200, seed=1, num_batches=10**9)
    passes = [[batch.tolist() for batch in sampler.batches(number)] for number in range(2)]
    for batches in passes:
        assert sorted(itertools.chain(*batches)) == list(range(101))
        # Sorted by length: little padding.
        assert sum(len(batch) * LENGTHS[batch].max() for batch in batches) < 1.5 * LENGTHS.sum()
    assert {frozenset(batch) for batch in passes[0]} != {frozenset(batch) for batch in passes[1]}
    # The next pass counts on from 101.
    later = [101 + index for index in passes[1][0]]
    assert [*itertools.islice(sampler, len(passes[0]) + 1)] == [*passes[0], later]
    assert [EXAMPLES[index][0].size for index in later] == LENGTHS[passes[1][0]].tolist()


def test_the_stream_is_a_function_of_the_seed() -> None:
    streams = [[*TokenBatchSampler(EXAMPLES, 200, seed, num_batches=53)] for seed in (1, 1, 2)]
    assert len(streams[0]) == 53
    assert streams[0] == streams[1] != streams[2]
    assert [*TokenBatchSampler(EXAMPLES, 200, seed=1, num_batches=53, start=40)][:13] == streams[0][40:]
