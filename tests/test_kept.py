"""softmax(R) kept between calls in inference: the same results as without, and never a stale one."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from synthetic_attention import SynthesizerAttention

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
    monkeypatch.setattr("synthetic_attention.kernels.shared.block_softmax", None)
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
        from synthetic_attention import SharedLogits, attend

        y = attend(SharedLogits(table, kept={}), value, visible)
    torch.testing.assert_close(y, value[:, :, shuffled].mean(2, keepdim=True).expand_as(y))


def test_copies_and_files_hold_no_weights() -> None:
    layer, x = layer_of("random"), torch.randn(B, N, H * HEAD, dtype=torch.float64)
    size = len(pickle.dumps(layer))
    with torch.no_grad():
        layer(x)
    assert len(pickle.dumps(layer)) == size
    assert copy.deepcopy(layer).function._kept._kept == {}
