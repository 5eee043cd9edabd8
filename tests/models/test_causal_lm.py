"""The language model: padding, packed sentences, scoring, training, saving, the pipeline."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, EncoderDecoderCache, pipeline

from models.conftest import STACKS, word_tokenizer

MIXED = ["random+vanilla", "factorized_dense"]
Rows = tuple[Tensor, Tensor]
# Row and slots of each sentence in `packed`.
SENTENCES = [(0, slice(0, 3)), (0, slice(3, 8)), (0, slice(8, 9)), (1, slice(1, 4)), (1, slice(5, 11))]


@pytest.fixture
def packed() -> Rows:
    """Two rows of eleven slots with five sentences, and their segments: numbers may come again, but not at once."""
    segments = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 2, 1, 0, 0], [0, 7, 7, 7, 0, 7, 7, 7, 7, 7, 7]])
    return torch.randint(3, 53, (2, 11)), segments


@pytest.mark.parametrize("stack", STACKS)
def test_packed_sentences_do_not_see_each_other(stack: str, tiny_lm: Callable, packed: Rows) -> None:
    model = tiny_lm(**STACKS[stack] | {"position_embedding_type": "learned"})
    ids, segments = packed
    out = model(ids, segment_ids=segments, labels=ids)
    losses = model.token_losses(ids, segment_ids=segments)
    expected = torch.zeros_like(losses)
    for row, tokens in SENTENCES:
        sentence = ids[row : row + 1, tokens]
        torch.testing.assert_close(out.logits[row, tokens], model(sentence).logits[0])
        expected[row, tokens] = model.token_losses(sentence)[0]
    torch.testing.assert_close(losses, expected)
    # The first token of each sentence is predicted by nothing.
    torch.testing.assert_close(out.loss, losses.sum() / (3 + 5 + 1 + 3 + 6 - 5))
    # Positions that begin again say the same, as in flattened batches.
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0, 8, 9], [9, 0, 1, 2, 0, 0, 1, 2, 3, 4, 5]])
    assert torch.equal(model(ids, segments > 0, position_ids=positions, labels=ids).loss, out.loss)
    # Whatever the others are, down to the last bit.
    changed = ids.clone()
    changed[0, 3:] = (changed[0, 3:] + 1) % 53
    changed[1] = 4
    assert torch.equal(model.token_losses(changed, segment_ids=segments)[0, :3], losses[0, :3])


def test_packed_training_equals_padded_training(tiny_lm: Callable, packed: Rows) -> None:
    model = tiny_lm(synthesizer=MIXED, dropout_rate=0.0).train()
    ids, segments = packed
    padded, labels = torch.zeros(5, 6, dtype=torch.long), torch.full((5, 6), -100)
    for number, (row, tokens) in enumerate(SENTENCES):
        length = tokens.stop - tokens.start
        padded[number, :length] = labels[number, :length] = ids[row, tokens]
    losses = [
        model(ids, segment_ids=segments, labels=ids).loss,
        model(padded, (labels != -100).long(), labels=labels).loss,
    ]
    torch.testing.assert_close(*losses)
    gradients = [torch.autograd.grad(loss, list(model.parameters()), allow_unused=True) for loss in losses]
    torch.testing.assert_close(*gradients)


def test_the_losses_of_tokens_are_the_models_loss(tiny_lm: Callable, rows: Rows) -> None:
    model = tiny_lm(synthesizer="dense")
    ids, mask = rows
    losses = model.token_losses(ids, mask)
    log_p = model(ids[:1]).logits.log_softmax(-1)
    torch.testing.assert_close(losses[0, 1:], -log_p[0, :-1].gather(1, ids[0, 1:, None])[:, 0])
    assert losses[0, 0] == 0
    assert not losses[mask == 0].any()
    scored = (losses != 0).sum()
    assert scored == mask.sum() - 4
    torch.testing.assert_close(losses.sum() / scored, model(ids, mask, labels=ids).loss)


def test_position_ids_are_those_of_the_mask(tiny_lm: Callable, rows: Rows) -> None:
    model, (ids, mask) = tiny_lm(synthesizer=MIXED), rows
    positions, expected = mask.cumsum(1) - 1, model(ids, mask)
    assert torch.equal(model(ids, mask, positions).logits, expected.logits)
    assert torch.equal(model(ids, position_ids=torch.arange(7)[None]).logits, model(ids).logits)
    more = {"attention_mask": F.pad(mask, (0, 1), value=1), "past_key_values": expected.past_key_values}
    step = model(ids[:, :1], position_ids=positions[:, -1:] + 1, **more).logits
    torch.testing.assert_close(step[:, 0], model(torch.cat([ids, ids[:, :1]], 1), more["attention_mask"]).logits[:, -1])
    for bad in ({"position_ids": positions[:, :1]}, {"position_ids": positions + 1}):
        with pytest.raises(ValueError, match="position_ids"):
            model(ids, mask, **bad)
    with pytest.raises(ValueError, match="after 8 in the cache"):
        model(ids[:, :1], position_ids=positions[:, :1] * 0, past_key_values=expected.past_key_values)
    with pytest.raises(TypeError, match="position_idss"):
        model(ids, mask, position_idss=positions)


def test_shifted_labels_and_logits_of_some_slots(tiny_lm: Callable, rows: Rows) -> None:
    model, (ids, _), slots = tiny_lm(synthesizer="dense"), rows, torch.tensor([4, 1])
    expected, shifted = model(ids, labels=ids), F.pad(ids[:, 1:], (0, 1), value=-100)
    for labels in ({"shift_labels": shifted}, {"shift_labels": shifted, "labels": ids * 0}, {"labels": ids}):
        out = model(ids, logits_to_keep=slots, **labels)
        assert torch.equal(out.loss, expected.loss)
        assert torch.equal(out.logits, expected.logits[:, slots])
    torch.testing.assert_close(model(ids, logits_to_keep=slots).logits, expected.logits[:, slots])


def test_the_pipeline_generates_text(tiny_lm: Callable) -> None:
    tokenizer, model = word_tokenizer(eos_token="w2"), tiny_lm(synthesizer="random")
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer)
    prompts = ["w5 w6 w7", "w8"]
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    # Together, the shorter prompt is padded on the left.
    results = generator(prompts, batch_size=2, return_full_text=False, **options)
    for prompt, [result] in zip(prompts, results, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        alone = model.generate(ids, **options)[0, ids.shape[1] :]
        assert result["generated_text"] == tokenizer.decode(alone, skip_special_tokens=True)


def test_bad_input(tiny_lm: Callable, rows: Rows, packed: Rows) -> None:
    model = tiny_lm(synthesizer="random")
    with pytest.raises(ValueError, match="EncoderDecoderCache"):
        model(rows[0], past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache()))
    ids, segments = packed
    with pytest.raises(ValueError, match=r"segment_ids of shape .*, 0 of them not 0"):
        model(ids, segment_ids=torch.zeros_like(segments))
    for options in ({"attention_mask": (segments > 0).long()}, {"use_cache": True}, {"output_attentions": True}):
        with pytest.raises(ValueError, match=r"segment_ids|sentences"):
            model(ids, segment_ids=segments, **options)
    with pytest.raises(ValueError, match=r"\(2, 10\).*\(2, 11\)"):
        model(ids, segment_ids=segments[:, 1:])
    # What is too long packed may not be too long as sentences.
    longest = torch.arange(1, 31).expand(1, -1) // 16 + 1
    assert model(torch.ones(1, 30, dtype=torch.long), segment_ids=longest).logits.shape == (1, 30, 53)
