"""Speed and cache of `generate()`: every variant against our vanilla and a Hugging Face model of the same size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models import SynthesizerConfig, SynthesizerForCausalLM, SynthesizerForConditionalGeneration
from ..models.cache import cache_bytes
from .timing import Quartiles, quartiles, take_turns

__all__ = ["CACHES", "PEERS", "Generation", "Profile", "Setting", "profile_steps", "run"]

# What each task is compared with.
PEERS = {"language-modeling": "gpt2", "translation": "marian"}
CACHES = ("dynamic", "static")
# Tokens of a prompt are drawn from here on, after those with a meaning.
_FIRST_TOKEN = 3


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is generated, and by models of which size.

    Attributes:
        task: one of `PEERS`; in translation the prompt is the source, and there is an encoder of as many layers.
        batch, prompt, new_tokens: sequences, tokens each starts with, and tokens each gets: always all.
        beams: of the search; 1 is greedy.
        cache: one of `CACHES`; transformers compiles decoding with a static one, on an accelerator.
    """

    task: str = "language-modeling"
    batch: int = 32
    prompt: int = 16
    new_tokens: int = 256
    beams: int = 1
    layers: int = 6
    width: int = 512
    heads: int = 8
    vocabulary: int = 8000
    cache: str = "dynamic"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, value, known in (("task", self.task, PEERS), ("cache", self.cache, CACHES)):
            if value not in known:
                raise ValueError(f"got {name}={value!r}; expected one of: {', '.join(known)}")
        for name in ("batch", "prompt", "new_tokens", "beams", "layers", "width", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"got {name}={getattr(self, name)}; expected at least 1")
        if self.vocabulary <= _FIRST_TOKEN:
            raise ValueError(f"got vocabulary={self.vocabulary}; expected more than {_FIRST_TOKEN}")
        if self.width % self.heads:
            raise ValueError(f"got width={self.width} and heads={self.heads}; expected heads that divide the width")

    @property
    def longest(self) -> int:
        """The longest sequence, which is what the models have positions for."""
        return self.prompt + self.new_tokens


@dataclass(frozen=True)
class Generation:
    """One model.

    Attributes:
        tokens_per_second: quartiles; tokens of the sequences that are returned, whatever the beams.
        ratio: quartiles of the peer's time over this model's, turn by turn: how many times as fast it is.
        cache_bytes: of the keys and values of all tokens at the end, those of cross-attention included.
        parameters: numbers in them.
    """

    setting: Setting
    name: str
    tokens_per_second: Quartiles
    ratio: Quartiles
    cache_bytes: int
    parameters: int


@dataclass(frozen=True)
class Profile:
    """Where the time of a decoding step of one model goes.

    Attributes:
        step: milliseconds, timed without the profiler.
        operations: milliseconds of PyTorch's operations, by name; with the profiler's own costs.
    """

    setting: Setting
    name: str
    step: float
    operations: dict[str, float]


def run(setting: Setting, variants: Sequence[str], repeats: int = 3) -> list[Generation]:
    """Check that each of our models generates what it predicts without a cache, then let all take turns.

    Returns:
        The peer first.

    Raises:
        RuntimeError: one does not.
        ValueError: an unknown variant, or sizes that do not fit.
    """
    models, prompts = _models(setting, variants)
    peer = PEERS[setting.task]
    cached: dict[str, int] = {}
    turns: dict[str, Callable[[], object]] = {}
    for name, model in models.items():
        result = _generate(model, setting, prompts)
        cached[name] = cache_bytes(result.past_key_values)
        if name != peer and setting.beams == 1:
            _check(name, model, prompts, result.sequences)
        turns[name] = partial(_generate, model, setting, prompts)
    times = take_turns(turns, repeats, warmup=0, device=setting.device)
    tokens, base = setting.batch * setting.new_tokens, torch.tensor(times[peer])
    return [
        Generation(
            setting,
            name,
            quartiles([tokens / second for second in taken]),
            quartiles(base / torch.tensor(taken)),
            cached[name],
            models[name].num_parameters(),
        )
        for name, taken in times.items()
    ]


def profile_steps(setting: Setting, variants: Sequence[str]) -> list[Profile]:
    """Where the time goes, averaged over the steps of one `generate()` (the prompt is one of them).

    Returns:
        The peer first.

    Raises:
        ValueError: an unknown variant, or sizes that do not fit.
    """
    from torch.profiler import ProfilerActivity, profile

    models, prompts = _models(setting, variants)
    turns = {name: partial(_generate, model, setting, prompts) for name, model in models.items()}
    times = take_turns(turns, repeats=1, warmup=1, device=setting.device)
    found = []
    for name, turn in turns.items():
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            turn()
        per_step = 1e3 * setting.new_tokens
        operations = {
            event.key.removeprefix("aten::")[:40]: event.self_cpu_time_total / per_step
            for event in profiler.key_averages()
        }
        found.append(Profile(setting, name, 1e3 * times[name][0] / setting.new_tokens, operations))
    return found


def _models(setting: Setting, variants: Sequence[str]) -> tuple[dict[str, Any], Tensor]:
    """All models, the peer first, and the prompts."""
    torch.manual_seed(0)
    prompts = torch.randint(_FIRST_TOKEN, setting.vocabulary, (setting.batch, setting.prompt), device=setting.device)
    models: dict[str, Any] = {PEERS[setting.task]: _peer(setting)}
    models |= {name: _ours(setting, name) for name in variants}
    return {
        name: model.to(device=setting.device, dtype=setting.dtype).eval() for name, model in models.items()
    }, prompts


def _ours(setting: Setting, synthesizer: str) -> PreTrainedModel:
    decoder_only = setting.task == "language-modeling"
    config = SynthesizerConfig(
        vocab_size=setting.vocabulary,
        d_model=setting.width,
        num_heads=setting.heads,
        d_ff=4 * setting.width,
        num_layers=setting.layers,
        synthesizer=synthesizer,
        max_position_embeddings=setting.longest,
        # As the peer has them.
        position_embedding_type="learned" if decoder_only else "sinusoidal",
        pre_norm=decoder_only,
        eos_token_id=None,
    )
    return SynthesizerForCausalLM(config) if decoder_only else SynthesizerForConditionalGeneration(config)


def _peer(setting: Setting) -> PreTrainedModel:
    from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

    # No token ends a sequence, and our activation: with their own they would be slower.
    if setting.task == "language-modeling":
        decoder = GPT2Config(
            vocab_size=setting.vocabulary,
            n_positions=setting.longest,
            n_embd=setting.width,
            n_layer=setting.layers,
            n_head=setting.heads,
            activation_function="relu",
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        )
        return GPT2LMHeadModel(decoder)
    config = MarianConfig(
        vocab_size=setting.vocabulary,
        d_model=setting.width,
        encoder_layers=setting.layers,
        decoder_layers=setting.layers,
        encoder_attention_heads=setting.heads,
        decoder_attention_heads=setting.heads,
        encoder_ffn_dim=4 * setting.width,
        decoder_ffn_dim=4 * setting.width,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=setting.longest,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        forced_eos_token_id=None,
        decoder_start_token_id=1,
    )
    return MarianMTModel(config)


def _generate(model: Any, setting: Setting, prompts: Tensor) -> Any:
    return model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=setting.new_tokens,
        num_beams=setting.beams,
        do_sample=False,
        cache_implementation=None if setting.cache == "dynamic" else setting.cache,
        return_dict_in_generate=True,
    )


@torch.no_grad()
def _check(name: str, model: Any, prompts: Tensor, sequences: Tensor) -> None:
    """Check that what was generated greedily is what one pass over all of it predicts, but for ties."""
    if model.config.is_encoder_decoder:
        predicted = model(prompts, decoder_input_ids=sequences[:, :-1]).logits.argmax(-1)
        agreed = predicted == sequences[:, 1:]
    else:
        predicted = model(sequences[:, :-1]).logits[:, prompts.shape[1] - 1 :].argmax(-1)
        agreed = predicted == sequences[:, prompts.shape[1] :]
    share = float(agreed.float().mean())
    if share < (0.99 if model.dtype == torch.float32 else 0.9):
        raise RuntimeError(f"{name} generates other tokens with a cache: only {share:.1%} are what it predicts without")
