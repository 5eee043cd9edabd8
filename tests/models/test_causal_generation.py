"""generate() of the language model: cached, uncached, beams, static and compiled, token for token the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import CompileConfig, DynamicCache, StaticCache

from models.conftest import STACKS
from synthetic_attention.models import SynthesizerForCausalLM
from synthetic_attention.models.cache import cache_bytes

LONGEST = 11
Prompts = tuple[Tensor, Tensor]


@pytest.fixture
def prompts() -> Prompts:
    """Three prompts of four slots, padded on the left: one of a single token, one of two, one of four."""
    ids, mask = torch.randint(3, 53, (3, 4)), torch.ones(3, 4, dtype=torch.long)
    mask[0, :3] = 0
    mask[1, :2] = 0
    return ids.masked_fill(mask == 0, 0), mask


@pytest.fixture
def model(stack: str, tiny_lm: Callable) -> SynthesizerForCausalLM:
    return tiny_lm(**STACKS[stack], max_position_embeddings=LONGEST)


def _generate(model: SynthesizerForCausalLM, prompts: Prompts, **options: Any) -> Tensor:
    """Up to exactly the longest sequence, or as the options say."""
    ids, mask = prompts
    torch.manual_seed(1)
    options = {"max_new_tokens": LONGEST - ids.shape[1], "eos_token_id": None, "pad_token_id": 0, **options}
    generated = model.generate(ids, attention_mask=mask, **options)
    assert isinstance(generated, Tensor)
    return generated


def _compiled(model: SynthesizerForCausalLM, prompts: Prompts) -> Tensor:
    compile_config = CompileConfig(fullgraph=True, backend="aot_eager", mode=None, dynamic=False)
    # Elsewhere transformers compiles for accelerators only.
    compile_config._compile_all_devices = True
    torch._dynamo.reset()
    counters.clear()
    result = _generate(model, prompts, cache_implementation="static", compile_config=compile_config)
    assert counters["stats"]["unique_graphs"] == 1
    return result


@pytest.mark.parametrize("stack", STACKS)
def test_all_ways_agree_up_to_the_longest_sequence(model: SynthesizerForCausalLM, prompts: Prompts) -> None:
    cached = _generate(model, prompts)
    assert cached.shape == (3, LONGEST)
    assert torch.equal(cached, _generate(model, prompts, use_cache=False))
    assert torch.equal(cached, _compiled(model, prompts))
    beams = _generate(model, prompts, num_beams=3)
    assert torch.equal(beams, _generate(model, prompts, num_beams=3, use_cache=False))
    # A row by itself has no padding: its positions are the same, and so are its tokens.
    alone = _generate(model, (prompts[0][:1, 3:], prompts[1][:1, 3:]), max_new_tokens=LONGEST - 4)
    assert torch.equal(cached[0, 3:], alone[0])


def test_new_tokens_have_the_last_token_type(tiny_lm: Callable, prompts: Prompts) -> None:
    model, types = tiny_lm(type_vocab_size=2), torch.tensor([[0, 0, 1, 1]]).expand(3, -1)
    found = _generate(model, prompts, token_type_ids=types, max_new_tokens=3)
    ones = torch.ones(3, 3, dtype=torch.long)
    logits = model(found, torch.cat([prompts[1], ones], 1), token_type_ids=torch.cat([types, ones], 1)).logits
    assert torch.equal(found[:, 4:], logits[:, 3:-1].argmax(-1))


@pytest.mark.parametrize("synthesizer", ["dense", "vanilla", "dynamic_conv"])
def test_one_token_more_than_the_longest(synthesizer: str, tiny_lm: Callable) -> None:
    # Vanilla has no longest sequence of its own, learned positions do.
    model = tiny_lm(
        synthesizer=synthesizer, num_layers=1, max_position_embeddings=LONGEST, position_embedding_type="learned"
    )
    ids = torch.randint(3, 53, (2, LONGEST - 1))
    for options in ({}, {"use_cache": False}, {"num_beams": 2}, {"cache_implementation": "static"}):
        assert _generate(model, (ids, torch.ones_like(ids)), **options).shape == (2, LONGEST)
        with pytest.raises(ValueError, match=r"12 slots.*11"):
            _generate(model, (ids, torch.ones_like(ids)), max_new_tokens=2, **options)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("stack", STACKS)
def test_bytes_of_the_cache(stack: str, static: bool, model: SynthesizerForCausalLM, prompts: Prompts) -> None:
    cache = StaticCache(model.config, max_cache_len=9) if static else DynamicCache(config=model.config)
    for ids in prompts[0].split([2, 1, 1], dim=1):
        model(ids, past_key_values=cache)
    layers = STACKS[stack]["synthesizer"]
    assert [int(layer.get_seq_length()) for layer in cache.layers] == [4] * len(layers)
    values = 3 * model.config.num_key_value_heads * (9 if static else 4) * model.config.d_kv * 4
    # Of two groups one has keys.
    keys = [("vanilla" in name) / (1 + name.count("/")) for name in layers]
    assert cache_bytes(cache) == values * (len(layers) + sum(keys))


@pytest.mark.parametrize("stack", ["mixtures"])
def test_a_cache_continues_where_it_stopped(model: SynthesizerForCausalLM, prompts: Prompts) -> None:
    whole, cache = _generate(model, prompts), DynamicCache(config=model.config)
    half = _generate(model, prompts, max_new_tokens=3, past_key_values=cache)
    mask = torch.cat([prompts[1], torch.ones(3, 3, dtype=torch.long)], dim=1)
    assert torch.equal(_generate(model, (half, mask), max_new_tokens=4, past_key_values=cache), whole)


@pytest.mark.parametrize("stack", STACKS)
def test_a_cache_without_configuration(model: SynthesizerForCausalLM, prompts: Prompts) -> None:
    assert torch.equal(_generate(model, prompts, past_key_values=DynamicCache()), _generate(model, prompts))


def test_continuous_batching_is_refused(tiny_lm: Callable) -> None:
    with pytest.raises(NotImplementedError, match=r"generate_batch.*synthetic_attention\.generate"):
        tiny_lm().generate_batch([[5, 6]])
