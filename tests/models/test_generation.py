"""generate(): with a cache token for token what it is without."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from models.synthesizers import EVERY

Source = tuple[Tensor, Tensor]

# Another synthesizer on each side, and in each layer of one; two layers that encode and four that decode.
SIDES = {"encoder": "factorized_dense+vanilla", "decoder": ["dense", "random", "random+vanilla", "factorized_random"]}
MODES: dict[str, dict[str, object]] = {
    "greedy": {},
    "beam": {"num_beams": 3, "length_penalty": 0.6},
    "sampled": {"do_sample": True, "top_k": 20},
}


def _both_ways(model: torch.nn.Module, source: Source, **options: object) -> Tensor:
    ids, mask = source
    results = []
    for use_cache in (True, False):
        torch.manual_seed(1)
        results.append(model.generate(ids, attention_mask=mask, max_new_tokens=9, use_cache=use_cache, **options))
    assert torch.equal(*results)
    return results[0]


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "relative"])
@pytest.mark.parametrize("synthesizer", EVERY)
def test_greedy_cached_equals_uncached(synthesizer: str, positions: str, tiny: Callable, source: Source) -> None:
    _both_ways(tiny(synthesizer=synthesizer, position_embedding_type=positions), source)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pre_norm", [True, False])
def test_sides_and_layers_that_differ(mode: str, pre_norm: bool, tiny: Callable, source: Source) -> None:
    model = tiny(synthesizer=SIDES, num_decoder_layers=4, pre_norm=pre_norm)
    _both_ways(model, source, **MODES[mode])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_prompts_padded_on_the_left(mode: str, positions: str, tiny: Callable, source: Source) -> None:
    model = tiny(synthesizer=SIDES, num_decoder_layers=4, position_embedding_type=positions)
    prompt, prompt_mask = torch.randint(3, 53, (3, 5)), torch.ones(3, 5, dtype=torch.long)
    prompt_mask[0, :2] = 0
    prompt = prompt.masked_fill(prompt_mask == 0, 0)
    prompt[[0, 1, 2], [2, 0, 0]] = model.config.decoder_start_token_id
    padded = _both_ways(model, source, decoder_input_ids=prompt, decoder_attention_mask=prompt_mask, **MODES[mode])
    if mode != "sampled":
        ids, mask = source
        alone = model.generate(
            ids[:1], attention_mask=mask[:1], max_new_tokens=9, decoder_input_ids=prompt[:1, 2:], **MODES[mode]
        )
        # A batch is as long as its longest row.
        assert torch.equal(padded[0, 2 : 2 + alone.shape[1]], alone[0, : padded.shape[1] - 2])


def test_a_padded_source_generates_what_it_generates_alone(tiny: Callable, source: Source) -> None:
    model = tiny(synthesizer="random+dense")
    ids, mask = source
    together = model.generate(ids, attention_mask=mask, max_new_tokens=9)
    for row in range(3):
        alone = model.generate(ids[row : row + 1, mask[row].bool()], max_new_tokens=9)
        assert torch.equal(together[row, : alone.shape[1]], alone[0])


@pytest.mark.parametrize("mode", MODES)
def test_a_cache_of_fixed_size(mode: str, tiny: Callable, source: Source) -> None:
    model = tiny(synthesizer=SIDES, num_decoder_layers=4)
    ids, mask = source
    dynamic = _both_ways(model, source, **MODES[mode])
    torch.manual_seed(1)
    fixed = model.generate(ids, attention_mask=mask, max_new_tokens=9, cache_implementation="static", **MODES[mode])
    assert torch.equal(fixed, dynamic)


@pytest.mark.parametrize("fixed_size", [False, True])
def test_pure_layers_cache_values_only(fixed_size: bool, tiny: Callable, source: Source) -> None:
    model = tiny(synthesizer=SIDES, num_decoder_layers=4)
    config = model.config.get_text_config(decoder=True)
    own = StaticCache(config=config, max_cache_len=11) if fixed_size else DynamicCache(config=config)
    cache = EncoderDecoderCache(own, DynamicCache(config=config))
    ids, mask = source
    for step in (slice(0, 4), slice(4, 5)):
        model(ids, mask, decoder_input_ids=ids[:, step], past_key_values=cache)
    assert [layer.keys.shape[-1] for layer in own.layers] == [0, 0, 11, 0]
    assert [layer.values.shape[-1] for layer in own.layers] == [11] * 4
    assert [int(layer.get_seq_length()) for layer in own.layers] == [5] * 4
    assert [layer.keys.shape for layer in cache.cross_attention_cache.layers] == [(3, 2, 7, 11)] * 4


def test_a_crop_takes_tokens_back(tiny: Callable, source: Source) -> None:
    model = tiny(synthesizer=SIDES, num_decoder_layers=4)
    ids, mask = source
    out = model(ids, mask, decoder_input_ids=ids[:, :5])
    out.past_key_values.crop(-2)
    again = model(ids, mask, decoder_input_ids=ids[:, 3:5], past_key_values=out.past_key_values)
    torch.testing.assert_close(again.logits, out.logits[:, 3:])


def test_past_the_longest_sequence(tiny: Callable, source: Source) -> None:
    ids, mask = source
    with pytest.raises(ValueError, match=r"20 slots in the decoder.*max_position_embeddings = 19"):
        tiny(synthesizer={"encoder": "vanilla", "decoder": "dense"}, eos_token_id=None).generate(
            ids, attention_mask=mask, max_new_tokens=30, pad_token_id=0
        )
    # Sinusoids and dot products have no longest sequence.
    unlimited = tiny(synthesizer="vanilla", eos_token_id=None)
    assert unlimited.generate(ids, attention_mask=mask, max_new_tokens=30, pad_token_id=0).shape == (3, 31)
