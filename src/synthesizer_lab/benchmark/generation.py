"""`generate()` of whole models with random weights: ours, and Hugging Face models of the same size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

from synthetic_attention.generation import generate
from synthetic_attention.models import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerPreTrainedModel,
)
from synthetic_attention.models.cache import cache_bytes

from .harness import measurement, time_turns

# The Hugging Face model of each task; speedups are over it.
PEERS = {"language-modeling": "gpt2", "translation": "marian"}
# Tokens of a prompt are drawn from here on, after the special tokens.
_FIRST_TOKEN = 3


@dataclass(frozen=True, kw_only=True)
class GenerationCase:
    """The sizes of the models, and what they generate.

    Attributes:
        task: one of `PEERS`; in translation the prompt is the source, read by an encoder with as many layers.
        batch, new_tokens: number of sequences, and tokens generated for each (always all).
        prompt: tokens of each prompt.
    """

    task: str = "language-modeling"
    batch: int = 32
    prompt: int = 16
    new_tokens: int = 256
    num_beams: int = 1
    layers: int = 6
    width: int = 512
    heads: int = 8
    vocabulary: int = 8000
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def longest(self) -> int:
        """Tokens of a prompt with those that are generated."""
        return self.prompt + self.new_tokens

    def inputs(self) -> dict[str, Any]:
        """The arguments of `generate()`, with random prompts."""
        ids = torch.randint(_FIRST_TOKEN, self.vocabulary, (self.batch, self.prompt), device=self.device)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": self.new_tokens,
            "num_beams": self.num_beams,
            "do_sample": False,
        }


def measure_generation(
    cases: Sequence[GenerationCase], variants: Sequence[str], repeats: int = 3
) -> list[dict[str, Any]]:
    """Time the peer and our models; the cases differ only in batch, prompt and number of beams."""
    longest, found = max(case.longest for case in cases), list[dict[str, Any]]()
    models = {name: make_model(cases[0], name, longest) for name in (PEERS[cases[0].task], *variants)}
    for case in cases:
        inputs, cached = case.inputs(), {}
        for name, model in models.items():
            # Only transformers' loop has a cache to return.
            cached[name] = cache_bytes(model.generate(**inputs, return_dict_in_generate=True).past_key_values)
        turns = {name: partial(generate_of(model), **inputs) for name, model in models.items()}
        # The first call on an accelerator may compile.
        times = time_turns(turns, repeats, warmup=int(case.device != "cpu"), device=case.device)
        for name, model in models.items():
            milliseconds, ratio = times[name]
            figures = {"parameters": model.num_parameters(), "cache_bytes": cached[name]}
            found.append(measurement(case, name, milliseconds=milliseconds, ratio=ratio, **figures))
    return found


def make_model(case: GenerationCase, name: str, longest: int) -> Any:
    """The peer or our model with this synthesizer, with random weights, for sequences of up to `longest` tokens."""
    torch.manual_seed(0)
    make = {"gpt2": _gpt2, "marian": _marian}.get(name) or partial(_ours, name)
    return make(case, longest).to(device=case.device, dtype=case.dtype).eval()


def generate_of(model: Any) -> Callable[..., Any]:
    """Our loop for our models, for others their own."""
    return partial(generate, model) if isinstance(model, SynthesizerPreTrainedModel) else model.generate


def _ours(synthesizer: str, case: GenerationCase, longest: int) -> Any:
    decoder_only = case.task == "language-modeling"
    config = SynthesizerConfig(
        vocab_size=case.vocabulary,
        d_model=case.width,
        num_heads=case.heads,
        d_ff=4 * case.width,
        num_layers=case.layers,
        synthesizer=synthesizer,
        max_position_embeddings=longest,
        # As in the peer.
        position_embedding_type="learned" if decoder_only else "sinusoidal",
        pre_norm=decoder_only,
        eos_token_id=None,
    )
    return SynthesizerForCausalLM(config) if decoder_only else SynthesizerForConditionalGeneration(config)


# No token ends a sequence, and the activation is ours, which is faster than GPT-2's and Marian's own.
_COMMON: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "bos_token_id": 1, "activation_function": "relu"}


def _gpt2(case: GenerationCase, longest: int) -> Any:
    sizes: dict[str, Any] = {"n_embd": case.width, "n_layer": case.layers, "n_head": case.heads, "n_positions": longest}
    return GPT2LMHeadModel(GPT2Config(vocab_size=case.vocabulary, **sizes, **_COMMON))


def _marian(case: GenerationCase, longest: int) -> Any:
    sizes = {"layers": case.layers, "attention_heads": case.heads, "ffn_dim": 4 * case.width}
    stacks: dict[str, Any] = {f"{side}_{part}": sizes[part] for side in ("encoder", "decoder") for part in sizes}
    stacks |= {"d_model": case.width, "scale_embedding": True, "max_position_embeddings": longest}
    stacks |= {"decoder_start_token_id": 1, "forced_eos_token_id": None}
    return MarianMTModel(MarianConfig(vocab_size=case.vocabulary, **stacks, **_COMMON))
