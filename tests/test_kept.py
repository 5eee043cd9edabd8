"""softmax(R) kept between calls in inference: the same results as without, and never a stale one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from synthetic_attention import SharedLogits, SynthesizerAttention, attend
from synthetic_attention.synthesizers import Span
from synthetic_attention.synthesizers.kept import KeptWeights

B, N, HEAD, H = 3, 11, 5, 2
NAMES = ("random", "fixed_random", "factorized_random")


def layer_of(name: str, **options: object) -> SynthesizerAttention:
    torch.manual_seed(0)
    layer = SynthesizerAttention(H * HEAD, H, name, N, **options).double()  # type: ignore[arg-type]
    for table in tables(layer):
        table.data.normal_()
    return layer.eval()


def tables(layer: SynthesizerAttention) -> list[Tensor]:
    return [*layer.function.parameters(), *layer.function.buffers()]


def mask(kind: str) -> Tensor | None:
    lengths = {"none": None, "padded": torch.tensor([N, 7, 2])}[kind]
    return None if lengths is None else torch.arange(N) < lengths[:, None]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_inference_gives_what_training_gives(name: str, kind: str, is_causal: bool) -> None:
    layer, x = layer_of(name), torch.randn(B, N, H * HEAD, dtype=torch.float64)
    expected = layer(x, mask(kind), is_causal=is_causal)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(layer(x, mask(kind), is_causal=is_causal), expected.detach())


@pytest.mark.parametrize("name", NAMES)
def test_the_second_call_makes_no_softmax(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_of(name), torch.randn(B, N, H * HEAD, dtype=torch.float64)
    with torch.inference_mode():
        first = layer(x)
    monkeypatch.setattr("synthetic_attention.kernels.shared_kept.block_softmax", None)
    with torch.inference_mode():
        assert torch.equal(layer(x), first)


@pytest.mark.parametrize("through_data", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_changed_table_is_seen(name: str, through_data: bool) -> None:
    layer, x = layer_of(name), torch.randn(B, N, H * HEAD, dtype=torch.float64)
    with torch.no_grad():
        before = layer(x)
        table = tables(layer)[0]
        (table.data if through_data else table)[0, 0, 0] += 1
        after = layer(x)
    assert not torch.equal(before[:, 0], after[:, 0])
    torch.testing.assert_close(after, layer(x).detach())


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
    layer = layer_of("random").float()
    (table,) = tables(layer)
    table.data.zero_()
    table.data[:, :, 0] = spread
    visible, x = torch.ones(B, N), torch.randn(B, N, H * HEAD)
    visible[:, 0] = 0
    shuffled = torch.arange(N) > 0
    value = torch.randn(B, H, N, HEAD)
    with torch.no_grad():
        layer(x)
        y = attend(SharedLogits(table, kept={}), value, visible)
    torch.testing.assert_close(y, value[:, :, shuffled].mean(2, keepdim=True).expand_as(y))


def test_copies_and_files_hold_no_weights() -> None:
    layer, x = layer_of("random"), torch.randn(B, N, H * HEAD, dtype=torch.float64)
    size = len(pickle.dumps(layer))
    with torch.no_grad():
        layer(x)
    assert len(pickle.dumps(layer)) == size
    assert copy.deepcopy(layer).function._kept._state[1] == {}


def test_autocast_has_weights_of_its_own() -> None:
    layer, x = layer_of("factorized_random").float(), torch.randn(B, N, H * HEAD)
    with torch.no_grad():
        expected = layer(x)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                fast = layer(x)
            assert fast.dtype == torch.bfloat16
            # Scores that were computed in bfloat16 differ.
            assert torch.equal(layer(x), expected)


def test_autocast_does_not_reach_the_kernel() -> None:
    """As without kept weights: values in float32 are averaged in float32."""
    scores, value = torch.randn(H, N, N), torch.randn(B, H, N, HEAD)
    with torch.no_grad():
        expected = attend(SharedLogits(scores, kept={}), value, mask("padded"))
        with torch.autocast("cpu", torch.bfloat16):
            found = attend(SharedLogits(scores, kept={}), value, mask("padded"))
    torch.testing.assert_close(found, expected)


def test_a_change_is_seen_where_a_sum_of_half_the_precision_overflows() -> None:
    layer, x = layer_of("random").half(), torch.randn(1, N, H * HEAD).half()
    (table,) = tables(layer)
    table.data.fill_(3e4)
    with torch.no_grad():
        before = layer(x)
        table.data[:, :, 0] = -3e4
        assert not torch.equal(layer(x), before)


class _Interrupting(int):
    """A length that lets another thread in at the worst moment: when it is found to be the one that is kept."""

    thread: Callable[[], object]

    def __eq__(self, other: object) -> bool:
        if other == N:
            self.thread()
        return int(self) == other

    __hash__ = int.__hash__


def test_threads_do_not_get_what_is_anothers() -> None:
    kept, table = KeptWeights(), torch.randn(H, N, N)
    with torch.no_grad():
        found = kept.still(Span(N, N), table)
        assert found is not None
        found["whose"] = "mine"
        length = _Interrupting(N)
        length.thread = lambda: kept.still(Span(3, 3), table)
        assert kept.still(Span(length, N), table) == {"whose": "mine"}


@pytest.mark.parametrize(
    "change", [lambda t: t.flip(0), lambda t: t.roll(1, 1), lambda t: t.roll(1, 2), lambda t: t.mT]
)
@pytest.mark.parametrize("length", [N, 4])
def test_another_order_of_the_same_scores_is_seen(change: Callable[[Tensor], Tensor], length: int) -> None:
    layer, x = layer_of("fixed_random"), torch.randn(B, length, H * HEAD, dtype=torch.float64)
    (table,) = tables(layer)
    # Whole numbers: their plain sum is the same in any order, to the last bit.
    table.data.copy_(torch.arange(H * N * N).view(H, N, N) % 7)
    with torch.no_grad():
        before = layer(x)
        table.data.copy_(change(table.data.clone()))
        after = layer(x)
    torch.testing.assert_close(after, layer(x).detach())
    assert not torch.allclose(after, before)


def test_a_change_beside_an_infinite_score_is_seen() -> None:
    layer, x = layer_of("fixed_random"), torch.randn(B, N, H * HEAD, dtype=torch.float64)
    (table,) = tables(layer)
    with torch.no_grad():
        table.data[0, 0, 0] = -torch.inf
        before = layer(x)
        table.data[1].normal_()
        after = layer(x)
    torch.testing.assert_close(after, layer(x).detach())
    assert not torch.allclose(after, before)


def test_autocast_does_not_hide_a_small_change() -> None:
    layer = SynthesizerAttention(H * HEAD, H, "fixed_random", N).eval()
    (table,) = tables(layer)
    with torch.no_grad(), torch.autocast("cpu"):
        layer(torch.randn(B, N, H * HEAD))
        for number in range(50):
            kept = layer.function._kept._state[1]  # type: ignore[operator, union-attr]
            table.data[number % H, number % N, number % 7] += 1e-3
            layer(torch.randn(B, N, H * HEAD))
            assert layer.function._kept._state[1] is not kept  # type: ignore[operator, union-attr]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_in_use_is_not_looked_at(name: str) -> None:
    layer, x = layer_of(name), torch.randn(B, 4, H * HEAD, dtype=torch.float64)
    with torch.no_grad():
        layer(x)
        kept = layer.function._kept._state[1]  # type: ignore[operator, union-attr]
        assert kept
        for table in tables(layer):
            table.data[:, 4:] += 1
        layer(x)
        assert layer.function._kept._state[1] is kept  # type: ignore[operator, union-attr]


def test_a_part_of_a_mixture_keeps_nothing() -> None:
    layer = layer_of("random+vanilla")
    with torch.no_grad():
        layer(torch.randn(B, N, H * HEAD, dtype=torch.float64))
    assert layer.function.parts[0]._kept._state == ((), {})  # type: ignore[operator, union-attr, index]
