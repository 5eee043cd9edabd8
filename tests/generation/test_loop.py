"""The decode loop against transformers' `generate()`: the same tokens for the same settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, LogitsProcessorList, MaxTimeCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from models.conftest import STACKS, build, tiny_config  # noqa: F401
from synthetic_attention import SynthesizerPreTrainedModel, generate

LONGEST = 19
# More columns of scores than are searched at once.
LARGE = 2203
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, n-grams and length": {"no_repeat_ngram_size": 2, "min_length": 9, "suppress_tokens": [5, 17]},
    "no end": {"eos_token_id": None},
    "several ends": {"eos_token_id": [2, 7, 11], "num_beams": 2},
    "beams": {"num_beams": 4, "length_penalty": 0.6},
    "beams, several results": {"num_beams": 3, "num_return_sequences": 3, "early_stopping": True},
    "beams, patient": {"num_beams": 3, "early_stopping": "never", "length_penalty": 2.0},
    "beams, n-grams and length": {"num_beams": 2, "no_repeat_ngram_size": 2, "min_new_tokens": 7},
    "beams, no end": {"num_beams": 2, "eos_token_id": None, "length_penalty": -1.0},
    "sampling": {"do_sample": True, "temperature": 0.7},
    "sampling from few": {"do_sample": True, "top_k": 9, "top_p": 0.9, "num_return_sequences": 2},
}


@contextmanager
def _without_transformers_loops() -> Iterator[None]:
    """Fail if transformers' own loop runs."""

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_sample", "_beam_search"):
            # transformers reads the signature.
            @functools.wraps(getattr(GenerationMixin, name))
            def fail(*args: Any, **kwargs: Any) -> None:
                raise AssertionError("transformers' loop ran")

            patch.setattr(GenerationMixin, name, fail)
        yield


def _check(model: Any, inputs: dict[str, Any], own: bool = True, **settings: Any) -> Tensor:
    """Check that both loops generate the same, and return it; `own` says whether ours has to do it."""
    settings = {"max_new_tokens": 12, "do_sample": False, **settings}
    torch.manual_seed(3)
    expected = model.generate(**inputs, **settings)
    torch.manual_seed(3)
    if own:
        with _without_transformers_loops():
            generated = generate(model, **inputs, **settings)
    else:
        generated = generate(model, **inputs, **settings)
    assert torch.equal(generated, expected)
    return generated


@pytest.fixture
def make(build: Callable[..., Any]) -> Callable[..., Any]:  # noqa: F811
    """A model in float64, in which no two scores are the same."""

    def make_model(head: str, **fields: Any) -> SynthesizerPreTrainedModel:
        model = build(head, **{"max_position_embeddings": LONGEST, "vocab_size": 31, **fields}).double()
        # So that texts end, at different lengths.
        model.lm_head.weight.data[2] *= 2
        return model

    return make_model


def _inputs(head: str, lengths: tuple[int, ...] = (5, 1, 3, 5, 2, 4, 5), vocabulary: int = 31) -> dict[str, Tensor]:
    """Sources padded on the right, or prompts padded on the left."""
    longest = max(lengths)
    ids, mask = torch.randint(3, vocabulary, (len(lengths), longest)), torch.ones(len(lengths), longest).long()
    for row, length in enumerate(lengths):
        mask[row, slice(length, None) if head == "seq2seq" else slice(longest - length)] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


@pytest.mark.parametrize("head", ["seq2seq", "causal"])
@pytest.mark.parametrize("stack", STACKS)
def test_every_synthesizer(stack: str, head: str, make: Callable[..., Any]) -> None:
    model = make(head, **STACKS[stack])
    for lengths in ((4, 4, 4), (4, 1, 3)):
        for beams in (1, 3):
            _check(model, _inputs(head, lengths), num_beams=beams, max_new_tokens=5)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting(name: str, make: Callable[..., Any]) -> None:
    for head in ("seq2seq", "causal"):
        model = make(head, synthesizer=["random+vanilla", "dense"])
        generated = _check(model, _inputs(head), **SETTINGS[name])
        if name in ("greedy", "beams"):
            # Rows end at different steps, so some are dropped before others.
            assert len({row.index(2, 1) for row in generated.tolist() if 2 in row[1:]}) > 1


@pytest.mark.parametrize("position_embedding_type", ["learned", "relative"])
def test_positions_norms_and_long_texts(
    position_embedding_type: str, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synthetic_attention.generation.step._AHEAD", 6)
    options = {
        "position_embedding_type": position_embedding_type,
        "synthesizer": ["random", "random/vanilla"],
        "pre_norm": position_embedding_type == "relative",
        "norm_type": "rms_norm",
        "feed_forward_proj": "gated-gelu",
        "embedding_norm": True,
        "lm_head_bias": True,
        "scale_embedding": False,
    }
    for head, types in (("seq2seq", 0), ("causal", 2)):
        model = make(head, **options, type_vocab_size=types)
        for lengths, beams in (((4, 4), 2), ((4, 1), 1)):
            # Exactly the longest sequence, from several blocks of rows and of slots.
            settings = {"max_new_tokens": LONGEST - 4, "eos_token_id": None}
            _check(model, _inputs(head, lengths), num_beams=beams, **settings)
    with pytest.raises(ValueError, match=rf"{LONGEST + 1} slots.*{LONGEST}"):
        generate(model, **_inputs("causal", (4, 4)), max_new_tokens=LONGEST - 3, eos_token_id=None)


def test_a_large_vocabulary(make: Callable[..., Any]) -> None:
    model = make("seq2seq", vocab_size=LARGE, synthesizer="random")
    inputs = _inputs("seq2seq", vocabulary=LARGE)
    for settings in ({}, {"num_beams": 4}, {"num_beams": 4, "suppress_tokens": [*range(9, 2100)]}):
        _check(model, inputs, **settings)


@pytest.mark.parametrize("beams", [1, 4])
def test_packed_weights(beams: int, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synthetic_attention.kernels.projections._PACKED_SIZE", 1)
    model = make("seq2seq", vocab_size=97, synthesizer="random+vanilla", lm_head_bias=beams == 1).float()
    _check(model, _inputs("seq2seq", vocabulary=97), num_beams=beams)


def test_the_first_tokens_of_the_output(make: Callable[..., Any]) -> None:
    model = make("seq2seq", synthesizer=["dense+vanilla", "dynamic_conv"])
    for beams in (1, 3):
        _check(model, {**_inputs("seq2seq"), "decoder_input_ids": torch.randint(3, 31, (7, 3))}, num_beams=beams)
    # A source of one token, and one of none.
    _check(model, _inputs("seq2seq", (1,)))
    _check(model, _inputs("seq2seq", (2, 0)), num_beams=2)


class _Adapter(nn.Module):
    """A projection with something added, as LoRA does, and with a result that lies by column."""

    def __init__(self, projection: nn.Linear) -> None:
        super().__init__()
        self.projection, self.added = projection, nn.Parameter(torch.randn_like(projection.weight))

    def forward(self, x: Tensor) -> Tensor:
        return (self.projection(x) + x @ self.added.T).mT.contiguous().mT


def test_changed_modules(make: Callable[..., Any]) -> None:
    model, inputs = make("seq2seq", synthesizer=["random+vanilla", "dense"]), _inputs("seq2seq")
    block = model.model.decoder.layers[0]
    before = _check(model, inputs, num_beams=2)
    for parent, name in ((block.self_attn, "v_proj"), (block.cross_attn, "q_proj"), (block.mlp, "up_proj")):
        setattr(parent, name, _Adapter(getattr(parent, name)))
    model.lm_head.register_forward_hook(lambda module, given, logits: logits.roll(1, -1))
    assert not torch.equal(_check(model, inputs, num_beams=2), before)
    _check(model, inputs)
    # A layer that is changed itself, and a model whose step is no longer the sum of its parts.
    block.self_attn.register_forward_hook(lambda module, given, y: 2 * y)
    _check(model, inputs, num_beams=2)
    block.register_forward_hook(lambda module, given, y: (2 * y[0], *y[1:]))
    _check(model, inputs, own=False, num_beams=2)


def test_what_a_hook_keeps_is_not_changed(make: Callable[..., Any]) -> None:
    model, kept = make("causal", synthesizer="random").float(), list[Tensor]()
    model.lm_head.register_forward_hook(lambda module, given, logits: kept.append(logits))
    generate(model, torch.tensor([[4, 5]]), max_new_tokens=3, suppress_tokens=[7, 8])
    assert len(kept) >= 3
    assert all(bool(logits.isfinite().all()) for logits in kept)


def test_what_the_loop_lacks_runs_in_transformers(make: Callable[..., Any]) -> None:
    model, inputs = make("causal", synthesizer="random"), _inputs("causal", (4, 2))
    left = inputs["attention_mask"]
    for settings in (
        {"repetition_penalty": 1.3},
        {"num_beams": 2, "do_sample": True},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"logits_processor": LogitsProcessorList([lambda ids, scores: scores.roll(1, -1)])},
        {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(1000.0)])},
        {"attention_mask": left.roll(1, 1)},
    ):
        given = {name: value for name, value in inputs.items() if name not in settings}
        _check(model, given, own=False, max_new_tokens=3, **settings)
    _check(model, _inputs("causal", (4,)), own=False, prompt_lookup_num_tokens=2)
    cache = DynamicCache(config=model.config)
    generate(model, **inputs, max_new_tokens=2, past_key_values=cache)
    assert cache.get_seq_length() == 5
    outputs = generate(model, **inputs, max_new_tokens=2, return_dict_in_generate=True, output_scores=True)
    assert len(outputs.scores) == 2
    # With dropout each text is another one.
    model.train()
    _check(model, inputs, own=False)


class _Collector(BaseStreamer):
    def __init__(self) -> None:
        self.parts: list[Tensor] = []

    def put(self, value: Tensor) -> None:
        self.parts.append(value.reshape(len(value), -1))

    def end(self) -> None:
        self.tokens = torch.cat(self.parts, dim=1)


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_streamer_gets_all_tokens(do_sample: bool, make: Callable[..., Any]) -> None:
    model, inputs, streamer = make("causal", synthesizer="dense"), _inputs("causal", (3, 2, 3)), _Collector()
    with _without_transformers_loops():
        tokens = generate(model, **inputs, streamer=streamer, max_new_tokens=9, do_sample=do_sample)
    assert torch.equal(streamer.tokens, tokens)
    with pytest.raises(ValueError, match="streamer"):
        generate(model, **inputs, streamer=streamer, num_beams=2, max_new_tokens=9)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_bfloat16(device: str, make: Callable[..., Any]) -> None:
    model = make("seq2seq", synthesizer=["random+vanilla", "dense/random"]).to(device, torch.bfloat16)
    inputs = {name: value.to(device) for name, value in _inputs("seq2seq").items()}
    with _without_transformers_loops():
        generated = generate(model, **inputs, num_beams=2, max_new_tokens=6, eos_token_id=None)
    assert generated.shape == (7, 7)
    assert generated.device.type == device
