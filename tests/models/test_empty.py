"""Batches without rows and sequences without tokens: an empty result or a ValueError, never NaN."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from models.conftest import FUNCTIONS, HEADS, WINDOWS
from synthetic_attention.attention import build as build_layer

SHAPES = [(0, 3), (2, 0), (0, 0)]
NAMES = ["random", "vanilla", "dense+vanilla", "dynamic_conv"]


@pytest.mark.parametrize("name", [*WINDOWS, "linformer"])
def test_baselines(name: str) -> None:
    layer = build_layer(name, 8, 2, 8, is_causal=False)
    for batch, length in SHAPES:
        x = torch.zeros(batch, length, 8)
        for mask in (None, torch.ones(batch, length)):
            y, weights = layer(x, mask, need_weights=True)
            assert y.shape == layer(x, mask).shape == x.shape
            assert weights.shape[:3] == (batch, 2, length)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("head", HEADS)
def test_heads(build: Callable, head: str, shape: tuple[int, int]) -> None:
    ids = torch.zeros(shape, dtype=torch.long)
    model = build(head, synthesizer=NAMES, num_layers=4, num_labels=3)
    labels = ids.new_zeros(shape[0]) if head == "classifier" else ids
    for training in (False, True):
        model.train(training)
        loss = model(input_ids=ids, attention_mask=torch.ones(shape), labels=labels).loss
        # The sum over no label; an empty text of a classifier does have one.
        assert loss.item() == 0 if labels.numel() == 0 else loss.isfinite()
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    logits = model(input_ids=ids, **({"decoder_input_ids": ids} if head == "seq2seq" else {})).logits
    assert logits.shape[0] == shape[0]
    assert logits.isfinite().all()


@pytest.mark.parametrize("head", ["causal", "seq2seq", "masked", "tagger", "classifier"])
def test_a_batch_without_a_label_has_no_loss(build: Callable, head: str) -> None:
    model, ids = build(head, num_labels=3).train(), torch.ones(2, 3, dtype=torch.long)
    loss = model(input_ids=ids, labels=torch.full((2,) if head == "classifier" else (2, 3), -100)).loss
    loss.backward()
    assert loss.item() == 0
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("beams", [1, 2])
def test_generate(build: Callable, beams: int) -> None:
    options: dict[str, Any] = {"max_new_tokens": 2, "num_beams": beams, "do_sample": False}
    for head, refused in (("causal", SHAPES), ("seq2seq", [(0, 3), (0, 0)])):
        model = build(head, synthesizer=FUNCTIONS, num_layers=len(FUNCTIONS))
        for shape in refused:
            with pytest.raises(ValueError, match="at least one row"):
                model.generate(torch.zeros(shape, dtype=torch.long), **options)
            with pytest.raises(ValueError, match="at least one row"):
                model.generate(inputs_embeds=torch.zeros(*shape, 22), **options)
    # An empty source is one that the decoder sees nothing of.
    assert model.generate(torch.zeros(2, 0, dtype=torch.long), **options).shape[0] == 2
