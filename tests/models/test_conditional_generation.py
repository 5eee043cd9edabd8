"""The encoder-decoder model: states and weights, labels, caches and generate(), refusals."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from models.conftest import STACKS

Rows = tuple[Tensor, Tensor]
# Another synthesizer on each side, and in each layer of one; two layers that encode and four that decode.
SIDES = {"encoder": "factorized_dense+vanilla", "decoder": ["dense", "random", "random+vanilla", "factorized_random"]}
MODES: dict[str, dict[str, object]] = {
    "greedy": {},
    "beam": {"num_beams": 3, "length_penalty": 0.6},
    "sampled": {"do_sample": True, "top_k": 20},
}


def _every_way(model: torch.nn.Module, rows: Rows, **options: object) -> Tensor:
    """Generate with a dynamic cache, without one and with a static one: the same tokens."""
    ids, mask = rows
    results = []
    for way in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        torch.manual_seed(1)
        results.append(model.generate(ids, attention_mask=mask, max_new_tokens=9, **way, **options))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    return results[0]


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "relative", "rotary"])
@pytest.mark.parametrize("stack", STACKS)
def test_a_cache_changes_nothing(stack: str, positions: str, tiny: Callable, rows: Rows) -> None:
    _every_way(tiny(**STACKS[stack] | {"position_embedding_type": positions}), rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pre_norm", [True, False])
def test_sides_and_layers_that_differ(mode: str, pre_norm: bool, tiny: Callable, rows: Rows) -> None:
    _every_way(tiny(synthesizer=SIDES, num_decoder_layers=4, pre_norm=pre_norm), rows, **MODES[mode])


@pytest.mark.parametrize("mode", MODES)
def test_prompts_padded_on_the_left(mode: str, tiny: Callable, rows: Rows) -> None:
    model = tiny(synthesizer=SIDES, num_decoder_layers=4, position_embedding_type="relative")
    prompt, prompt_mask = torch.randint(3, 53, (4, 5)), torch.ones(4, 5, dtype=torch.long)
    prompt_mask[0, :2] = 0
    prompt = prompt.masked_fill(prompt_mask == 0, 0)
    prompt[[0, 1, 2, 3], [2, 0, 0, 0]] = model.config.decoder_start_token_id
    padded = _every_way(model, rows, decoder_input_ids=prompt, decoder_attention_mask=prompt_mask, **MODES[mode])
    if mode != "sampled":
        ids, mask = rows
        alone = model.generate(
            ids[:1], attention_mask=mask[:1], max_new_tokens=9, decoder_input_ids=prompt[:1, 2:], **MODES[mode]
        )
        # A batch is as long as its longest row.
        assert torch.equal(padded[0, 2 : 2 + alone.shape[1]], alone[0, : padded.shape[1] - 2])


def test_the_states_and_weights_of_every_layer(tiny: Callable, rows: Rows) -> None:
    model = tiny(synthesizer={"encoder": ["random+vanilla", "dense"], "decoder": "random"}, num_decoder_layers=3)
    ids, mask = rows
    record = dict.fromkeys(["output_attentions", "output_hidden_states"], True)
    out = model(ids, mask, decoder_input_ids=ids[:, :5], decoder_attention_mask=mask[:, :5], **record)
    assert [len(out[name]) for name in ("encoder_attentions", "decoder_attentions", "cross_attentions")] == [2, 3, 3]
    assert [len(out[name]) for name in ("encoder_hidden_states", "decoder_hidden_states")] == [3, 4]
    assert out.cross_attentions[0].shape == (4, 2, 5, 7)
    torch.testing.assert_close(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)
    torch.testing.assert_close(model.lm_head(out.decoder_hidden_states[-1]), out.logits)


def test_the_encoder_alone(tiny: Callable, rows: Rows) -> None:
    model = tiny(synthesizer="random+vanilla")
    model.config.output_hidden_states = True
    encoder, states = model.get_encoder(), model(*rows, decoder_input_ids=rows[0]).encoder_hidden_states
    torch.testing.assert_close(encoder(*rows).hidden_states, states)
    torch.testing.assert_close(copy.deepcopy(encoder)(*rows).hidden_states, states)
    model.train().get_encoder().requires_grad_(False).eval()
    assert (model.model.decoder.training, model.get_encoder().training) == (True, False)
    sides = (model.model.encoder, model.model.decoder)
    assert [{x.requires_grad for x in side.parameters()} for side in sides] == [{False}, {True}]


def test_labels_are_shifted_right(tiny: Callable) -> None:
    labels = torch.randint(3, 53, (3, 5))
    labels[1, 3:] = -100
    shifted = tiny(bos_token_id=None, decoder_start_token_id=4).prepare_decoder_input_ids_from_labels(labels)
    assert shifted[:, 0].tolist() == [4, 4, 4]
    assert torch.equal(shifted[0, 1:], labels[0, :-1])
    assert shifted[1].tolist() == [4, *labels[1, :3].tolist(), 0]


def test_bad_input(tiny: Callable, rows: Rows) -> None:
    model, (ids, mask), labels = tiny(synthesizer="random"), rows, torch.randint(3, 53, (4, 5))
    with pytest.raises(ValueError, match="decoder_input_ids"):
        model(ids, mask)
    with pytest.raises(ValueError, match=r"labels of shape \(4, 5\).*\(4, 7\)"):
        model(ids, mask, decoder_input_ids=ids, labels=labels)
    with pytest.raises(ValueError, match="EncoderDecoderCache"):
        model(ids, mask, decoder_input_ids=ids, past_key_values=DynamicCache(config=model.config))
    with pytest.raises(ValueError, match="decoder_start_token_id=None"):
        tiny(bos_token_id=None, pad_token_id=None)(ids, mask, labels=labels)
