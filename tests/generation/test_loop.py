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
def _ways() -> Iterator[list[str]]:
    """The ways that calls of `generate` take: no entry for the searches of this package, else "step" or "model"."""
    ways = list[str]()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_sample", "_beam_search", "_assisted_decoding"):
            original = getattr(GenerationMixin, name)

            # transformers reads the signature.
            @functools.wraps(original)
            def note(model: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                ways.append("model" if isinstance(model, nn.Module) else "step")
                return _original(model, *args, **kwargs)

            patch.setattr(GenerationMixin, name, note)
        yield ways


def _check(model: Any, inputs: dict[str, Any], way: str = "search", **settings: Any) -> Tensor:
    """Check that both loops generate the same, and the way that ours takes; return what they generate."""
    settings = {"max_new_tokens": 12, "do_sample": False, **settings}
    torch.manual_seed(3)
    expected = model.generate(**inputs, **settings)
    torch.manual_seed(3)
    with _ways() as ways:
        generated = generate(model, **inputs, **settings)
    assert torch.equal(generated, expected)
    assert ways == ([] if way == "search" else [way])
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
            # Baselines have no step.
            way = "model" if stack == "windows" else "search"
            _check(model, _inputs(head, lengths), way, num_beams=beams, max_new_tokens=5)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting(name: str, make: Callable[..., Any]) -> None:
    for head in ("seq2seq", "causal"):
        generated = _check(make(head, synthesizer=["random+vanilla", "dense"]), _inputs(head), **SETTINGS[name])
        if name in ("greedy", "beams"):
            # Rows end at different steps, so some are dropped before others.
            assert len({row.index(2, 1) for row in generated.tolist() if 2 in row[1:]}) > 1


@pytest.mark.parametrize("position_embedding_type", ["learned", "relative", "rotary"])
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


def test_another_default_dtype(make: Callable[..., Any]) -> None:
    model, inputs = make("causal", synthesizer="random"), _inputs("causal")
    torch.set_default_dtype(torch.float64)
    try:
        _check(model, inputs, num_beams=3)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_first_tokens_of_the_output(make: Callable[..., Any]) -> None:
    model = make("seq2seq", synthesizer=["dense+vanilla", "random"])
    for beams in (1, 3):
        _check(model, {**_inputs("seq2seq"), "decoder_input_ids": torch.randint(3, 31, (7, 3))}, num_beams=beams)
    # A source of one token, and one of none.
    _check(model, _inputs("seq2seq", (1,)))
    _check(model, _inputs("seq2seq", (2, 0)), num_beams=2)


@pytest.mark.parametrize("use_bias", [False, True])
def test_one_source(use_bias: bool, make: Callable[..., Any]) -> None:
    model = make("seq2seq", use_bias=use_bias)
    cross_attention = [block.cross_attn for block in model.model.decoder.layers]
    for name, parameter in (item for layer in cross_attention for item in layer.named_parameters()):
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    longest = model.config.d_model // model.config.num_heads
    for length, padding in ((longest, 0), (longest + 1, 0), (2, longest - 2), (2, longest - 1), (0, 2)):
        ids, mask = torch.randint(3, 31, (1, length + padding)), torch.ones(1, length + padding).long()
        mask[:, length:] = 0
        for beams in (1, 3):
            _check(model, {"input_ids": ids, "attention_mask": mask}, num_beams=beams, eos_token_id=None)
    # Of a projection with something added, only the call is known.
    cross_attention[0].out_proj = _Adapter(cross_attention[0].out_proj)
    _check(model, {"input_ids": ids[:, :1]})


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
    assert not torch.equal(_check(model, inputs, num_beams=2), before)
    _check(model, inputs)
    # A layer whose step is no longer the sum of its parts.
    attend = block.self_attn.forward
    block.self_attn.forward = lambda *given, **options: 2 * attend(*given, **options)
    _check(model, inputs, "model", num_beams=2)


@pytest.mark.parametrize("head", ["seq2seq", "causal"])
def test_other_settings_run_in_transformers_searches(head: str, make: Callable[..., Any]) -> None:
    model, inputs = make(head, synthesizer="random+vanilla"), _inputs(head, (4, 2))
    for settings in (
        {"repetition_penalty": 1.3},
        {"num_beams": 2, "do_sample": True},
        {"num_beams": 2, "length_penalty": -1e3},
        {"logits_processor": LogitsProcessorList([lambda ids, scores: scores.roll(1, -1)])},
        {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(1000.0)])},
    ):
        _check(model, inputs, "step", max_new_tokens=9, **settings)
    # Without a mask, where transformers looks for padding.
    ids = inputs["input_ids"]
    assert torch.equal(generate(model, ids, max_new_tokens=4), model.generate(ids, max_new_tokens=4))


def test_what_a_step_cannot_compute_runs_in_the_model(make: Callable[..., Any]) -> None:
    model, inputs = make("causal", synthesizer="random"), _inputs("causal", (4, 2))
    for settings in (
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"attention_mask": inputs["attention_mask"].roll(1, 1)},
    ):
        given = {name: value for name, value in inputs.items() if name not in settings}
        _check(model, given, "model", max_new_tokens=3, **settings)
    _check(model, _inputs("causal", (4,)), "model", prompt_lookup_num_tokens=2)
    cache = DynamicCache(config=model.config)
    generate(model, **inputs, max_new_tokens=2, past_key_values=cache)
    assert cache.get_seq_length() == 5
    # The time of a step grows with the square of the beams of heads with keys.
    for synthesizer, way in (("random", "search"), ("vanilla", "model")):
        _check(make("causal", synthesizer=synthesizer, vocab_size=97), inputs, way, num_beams=25, max_new_tokens=2)


def test_a_beam_search_without_enough_tokens(make: Callable[..., Any]) -> None:
    model = make("causal", vocab_size=7, synthesizer="random")
    prompt = {"input_ids": torch.tensor([[4]]), "attention_mask": torch.ones(1, 1).long()}
    _check(model, prompt, "step", num_beams=2, no_repeat_ngram_size=1, max_new_tokens=8, eos_token_id=None)


def test_tokens_outside_the_vocabulary(make: Callable[..., Any]) -> None:
    model, inputs = make("causal", synthesizer="random"), _inputs("causal", (3, 2))
    for tokens in ([-1], [31], [5, 99]):
        _check(model, inputs, suppress_tokens=tokens)
    _check(model, inputs, eos_token_id=-1, min_new_tokens=3)
    _check(model, inputs, eos_token_id=[2, 99], min_new_tokens=3)


def test_a_mask_that_does_not_fit(make: Callable[..., Any]) -> None:
    ids = torch.tensor([[4, 5, 6], [4, 5, 6]])
    # Baselines have no step.
    for head, synthesizer in (("causal", "local_dense"), ("causal", "random"), ("seq2seq", "random")):
        model = make(head, synthesizer=synthesizer)
        for mask in (torch.ones(2, 5), torch.ones(2, 2), torch.ones(2, 0), torch.ones(1, 3), -torch.ones(2, 3)):
            with pytest.raises(ValueError, match=r"attention_mask"):
                generate(model, ids, attention_mask=mask, max_new_tokens=3)
    with torch.no_grad():
        states = model.get_encoder()(ids, return_dict=True).last_hidden_state
    with pytest.raises(ValueError, match=r"attention_mask.*\(2, 1\).*\(2, 3\)"):
        generate(model, encoder_outputs=(states,), attention_mask=torch.ones(2, 1), max_new_tokens=3)
    _check(model, {"encoder_outputs": (states[:1],)})


def test_models_with_hooks_run_as_they_are(make: Callable[..., Any]) -> None:
    model, inputs = make("seq2seq", synthesizer=["random+vanilla", "dense"]), _inputs("seq2seq", (5, 3))
    before, (first, second) = _check(model, inputs), model.model.decoder.layers
    for module in (first.self_attn.v_proj, second.mlp.down_proj, second.self_attn.function.q_proj, model.lm_head):
        handle = module.register_forward_hook(lambda module, given, y: y + torch.linspace(-1, 1, y.shape[-1]).to(y))
        _check(model, inputs, "model")
        handle.remove()
    assert torch.equal(_check(model, inputs), before)


def test_the_first_of_equal_scores(make: Callable[..., Any]) -> None:
    model = make("causal", synthesizer="random", vocab_size=LARGE).bfloat16()
    model.lm_head.weight.data[40:] = model.lm_head.weight.data[:1]
    for rows in (1, 5):
        inputs = {"input_ids": torch.full((rows, 2), 4), "attention_mask": torch.ones(rows, 2).long()}
        _check(model, inputs, eos_token_id=None)


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
    tokens = generate(model, **inputs, streamer=streamer, max_new_tokens=9, do_sample=do_sample)
    assert torch.equal(streamer.tokens, tokens)
    with pytest.raises(ValueError, match="streamer"):
        generate(model, **inputs, streamer=streamer, num_beams=2, max_new_tokens=9)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_bfloat16(device: str, make: Callable[..., Any]) -> None:
    model = make("seq2seq", synthesizer=["random+vanilla", "dense/random"]).to(device, torch.bfloat16)
    inputs = {name: value.to(device) for name, value in _inputs("seq2seq").items()}
    with _ways() as ways:
        generated = generate(model, **inputs, num_beams=2, max_new_tokens=6, eos_token_id=None)
    assert not ways
    assert generated.shape == (7, 7)
    assert generated.device.type == device
