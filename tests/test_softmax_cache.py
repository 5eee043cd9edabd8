"""softmax(R) cached between calls in inference: the same results as without a cache, and never a stale one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from synthetic_attention import SharedLogits, SynthesizerAttention, attend
from synthetic_attention.kernels import CachedLogits, SoftmaxCache
from synthetic_attention.logits import Positions

B, N, HEAD, H = 3, 11, 5, 2
NAMES = ("random", "fixed_random", "factorized_random", "relative_random")
ALL = Positions(N, N)


def layer_of(name: str, **options: object) -> SynthesizerAttention:
    torch.manual_seed(0)
    layer = SynthesizerAttention(H * HEAD, H, name, N, **options).double()  # type: ignore[arg-type]
    for table in tables(layer):
        table.data.normal_()
    return layer.eval()


def tables(layer: SynthesizerAttention) -> list[Tensor]:
    return [*layer.function.parameters(), *layer.function.buffers()]


def check_that_a_change_is_seen(layer: SynthesizerAttention, x: Tensor, change: Callable[[Tensor], object]) -> None:
    """Also of a table that autograd does not see change."""
    with torch.no_grad():
        before = layer(x)
        change(tables(layer)[0])
        after = layer(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, layer(x).detach())


def cached(scores: Tensor) -> SharedLogits:
    return CachedLogits(SoftmaxCache(), ALL, (scores,), lambda: scores)


def mask(kind: str) -> Tensor | None:
    return torch.arange(N) < torch.tensor([N, 7, 2])[:, None] if kind == "padded" else None


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_inference_gives_what_training_gives(name: str, kind: str, is_causal: bool) -> None:
    layer, x = layer_of(name), torch.randn(B, N, H * HEAD, dtype=torch.float64)
    expected = layer(x, mask(kind), is_causal=is_causal)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(layer(x, mask(kind), is_causal=is_causal), expected.detach())


@pytest.mark.parametrize("through_data", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_changed_table_is_seen(name: str, through_data: bool) -> None:
    layer, x = layer_of(name), torch.randn(B, N, H * HEAD, dtype=torch.float64)

    def change(table: Tensor) -> None:
        (table.data if through_data else table)[(0,) * (table.dim() - 1)][table.shape[-1] // 2] += 1

    check_that_a_change_is_seen(layer, x, change)


@pytest.mark.parametrize("name", NAMES)
def test_other_lengths_and_masks_have_weights_of_their_own(name: str) -> None:
    layer, x = layer_of(name), torch.randn(B, N, H * HEAD, dtype=torch.float64)
    for length in (N, 4, N):
        for is_causal in (False, True, False):
            expected = layer(x[:, :length], is_causal=is_causal).detach()
            with torch.no_grad():
                torch.testing.assert_close(layer(x[:, :length], is_causal=is_causal), expected)


@pytest.mark.parametrize("spread", [70.0, 200.0])
def test_masks_that_leave_only_vanished_weights(spread: float) -> None:
    table, visible, value = torch.zeros(H, N, N), torch.ones(B, N), torch.randn(B, H, N, HEAD)
    table[:, :, 0], visible[:, 0] = spread, 0
    with torch.no_grad():
        y = attend(cached(table), value, visible)
    torch.testing.assert_close(y, value[:, :, 1:].mean(2, keepdim=True).expand_as(y))


def test_copies_and_files_hold_no_weights() -> None:
    layer, x = layer_of("random"), torch.randn(B, N, H * HEAD, dtype=torch.float64)
    size = len(pickle.dumps(layer))
    with torch.no_grad():
        layer(x)
    assert len(pickle.dumps(layer)) == size
    assert len(pickle.dumps(copy.deepcopy(layer))) == size


def test_a_change_is_seen_where_a_sum_of_half_the_precision_overflows() -> None:
    layer, x = layer_of("random").half(), torch.randn(1, N, H * HEAD).half()
    (table,) = tables(layer)
    table.data.fill_(3e4)
    with torch.no_grad():
        before = layer(x)
        table.data[:, :, 0] = -3e4
        assert not torch.equal(layer(x), before)


@pytest.mark.parametrize(
    "change", [lambda t: t.flip(0), lambda t: t.roll(1, 1), lambda t: t.roll(1, 2), lambda t: t.mT]
)
@pytest.mark.parametrize("length", [N, 4])
def test_another_order_of_the_same_scores_is_seen(change: Callable[[Tensor], Tensor], length: int) -> None:
    layer, x = layer_of("fixed_random"), torch.randn(B, length, H * HEAD, dtype=torch.float64)
    (table,) = tables(layer)
    # Whole numbers: their plain sum is the same in any order, to the last bit.
    table.data.copy_(torch.arange(H * N * N).view(H, N, N) % 7)
    check_that_a_change_is_seen(layer, x, lambda table: table.data.copy_(change(table.data.clone())))


def test_a_change_beside_an_infinite_score_is_seen() -> None:
    layer, x = layer_of("fixed_random"), torch.randn(B, N, H * HEAD, dtype=torch.float64)
    tables(layer)[0].data[0, 0, 0] = -torch.inf
    check_that_a_change_is_seen(layer, x, lambda table: table.data[1].normal_())


def test_fake_tensors_are_not_cached() -> None:
    for kind in (FakeTensorMode, nullcontext):
        with kind(), torch.no_grad():
            layer, x, mask = SynthesizerAttention(10, 2, "random", N), torch.ones(B, N, 10), torch.ones(B, N)
            assert all(layer(x[:, :n], mask[:, :n]).shape == x[:, :n].shape for n in (1, N))
