"""The cache layer that counts values, against transformers' own."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from synthetic_attention.models.cache import DynamicKeysValuesLayer

Change = Callable[[DynamicLayer], None]

CHANGES: dict[str, Change] = {
    "nothing": lambda layer: None,
    "crop": lambda layer: layer.crop(-2),
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([2, 0, 2])),
    "repeat": lambda layer: layer.batch_repeat_interleave(2),
    "select": lambda layer: layer.batch_select_indices(torch.tensor([1, 0])),
    "offload": lambda layer: (layer.offload(), layer.prefetch())[0],
    "reset": lambda layer: layer.reset(),
}


def _states(batch: int, tokens: int, heads: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, heads, tokens, 5), torch.randn(batch, 2, tokens, 7)


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("heads", [2, 1, 0])
def test_it_holds_what_the_layer_of_transformers_holds(heads: int, change: str) -> None:
    ours, theirs = DynamicKeysValuesLayer(), DynamicLayer()
    for step in range(90):
        batch = 3 if not ours.get_seq_length() else len(ours.values)
        states = _states(batch, 4 if step == 0 else 1, heads)
        torch.testing.assert_close(*[layer.update(*states) for layer in (ours, theirs)], rtol=0, atol=0)
        # Where vanilla's own layer can do it at all.
        if step in (3, 70) and (heads or change not in ("reorder", "repeat", "select")):
            for layer in (ours, theirs):
                CHANGES[change](layer)
    assert ours.get_seq_length() == ours.values.shape[-2]


@torch.no_grad()
def test_a_cache_with_keys_for_some_heads_is_pickled(tiny_lm: Callable) -> None:
    model, ids = tiny_lm(synthesizer=["random/vanilla", "random"]), torch.randint(3, 53, (2, 4))
    cache = DynamicCache(config=model.config)
    model(ids, past_key_values=cache)
    other = pickle.loads(pickle.dumps(cache))
    expected, got = (model(ids[:, :1], past_key_values=each).logits for each in (cache, other))
    assert torch.equal(got, expected)
