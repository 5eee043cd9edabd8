"""Padded batches are packed once: blocks see (1, n, d_model), the real tokens, and results are those of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.conftest import HEADS

B, S, T = 5, 13, 11
SLOTS = torch.arange(S)
MASKS = {
    "right": torch.tensor([13, 7, 1, 4, 9])[:, None] > SLOTS,
    "left": torch.tensor([0, 6, 12, 3, 9])[:, None] <= SLOTS,
    "holes": (SLOTS * torch.tensor([1, 2, 3, 5, 7])[:, None]) % 4 > 1,
}
SEGMENTS = torch.tensor(
    [[1] * 4 + [2] * 6 + [0] * 3, [0, 0, 5] + [6] * 7 + [0] * 3, [3] * 2 + [0] * 11, [0] * 13, [1] * 13]
)


def a_model(head: str, tiny_config: Callable, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return HEADS[head](tiny_config(dropout_rate=0.0, num_labels=3, **options)).double().train()


def a_batch(head: str, mask: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(3, 30, (B, S))
    if head == "classifier":
        return {"input_ids": ids, "attention_mask": mask.long(), "labels": torch.tensor([0, 2, 1, 1, 0])}
    labels = torch.where(mask, torch.randint(3, 30, (B, S)), -100)
    if head == "seq2seq":
        labels = torch.randint(3, 30, (B, T)).where(torch.arange(T) < torch.tensor([3, 11, 5, 1, 7])[:, None], -100)
        # Not scored, but context of what comes after it.
        labels[1, 4] = -100
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


def results(model: nn.Module, batch: dict[str, Any], **options: Any) -> list[Tensor]:
    outputs = model(**batch, **options)
    grads = torch.autograd.grad(outputs.loss, list(model.parameters()), materialize_grads=True, allow_unused=True)
    states = outputs.get("hidden_states") or outputs.get("decoder_hidden_states") or ()
    return [outputs.loss, *states, *grads]


@pytest.mark.parametrize("name", ["random", "dense+vanilla", "factorized_dense", "random:1/vanilla:1", "dynamic_conv"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "relative", "rotary"])
@pytest.mark.parametrize(
    ("head", "kind"), [("seq2seq", "holes"), ("causal", "left"), ("masked", "right"), ("classifier", "holes")]
)
def test_losses_gradients_and_states_are_those_of_rows(
    name: str, positions: str, head: str, kind: str, tiny_config: Callable
) -> None:
    fields, batch, found = {"synthesizer": name, "position_embedding_type": positions}, a_batch(head, MASKS[kind]), []
    for unpad in (True, False):
        model = a_model(head, tiny_config, **fields, unpad_inputs=unpad)
        found.append(results(model, batch) + results(model, batch, output_hidden_states=True))
    for packed, rows in zip(*found, strict=True):
        torch.testing.assert_close(packed, rows)


@pytest.mark.parametrize("head", ["causal", "masked"])
def test_several_sentences_in_a_row(head: str, tiny_config: Callable) -> None:
    found, batch = [], a_batch(head, SEGMENTS != 0)
    del batch["attention_mask"]
    for unpad in (True, False):
        model = a_model(head, tiny_config, synthesizer="random+vanilla", unpad_inputs=unpad)
        found.append(results(model, batch, segment_ids=SEGMENTS))
    for packed, rows in zip(*found, strict=True):
        torch.testing.assert_close(packed, rows)


def test_what_blocks_see(tiny_config: Callable) -> None:
    mask, seen = MASKS["left"], list[torch.Size]()

    class Spy(nn.Identity):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.shape)
            return x

    for unpad, tokens in ((True, (1, int(mask.sum()))), (False, (B, S))):
        model = a_model("seq2seq", tiny_config, synthesizer="random", unpad_inputs=unpad)
        # A module in its place: a hook would be for rows.
        model.model.encoder.layers[0].mlp = Spy()
        model(**a_batch("seq2seq", mask))
        assert seen.pop() == (*tokens, model.config.d_model)


def test_masks_beside_labels_are_checked(tiny_config: Callable) -> None:
    model, batch = a_model("seq2seq", tiny_config), a_batch("seq2seq", MASKS["right"])
    for mask in (torch.ones(1, T), torch.ones(B, T + 1), torch.zeros(B, T).masked_fill(MASKS["left"][:, :T], -1.0)):
        with pytest.raises(ValueError, match="attention_mask"):
            model(**batch, decoder_attention_mask=mask)
    with pytest.raises(ValueError, match="labels of shape"):
        model(**batch, decoder_input_ids=torch.full((B, T + 1), 3))
    # A mask hides context; the tokens after the last label change nothing.
    mask = torch.ones(B, T).masked_fill(torch.arange(T) == 1, 0)
    expected = model(**batch, decoder_attention_mask=mask, output_hidden_states=True).loss
    torch.testing.assert_close(model(**batch, decoder_attention_mask=mask).loss, expected)
