"""`generate()` of whole models with random weights: ours, and a Hugging Face model of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel, PreTrainedModel

from ..models import SynthesizerConfig, SynthesizerForCausalLM, SynthesizerForConditionalGeneration
from ..models.cache import cache_bytes
from ..tasks.memory import check_generation
from .harness import Measurement, time_turns

# The Hugging Face model of each task.
PEERS = {"language-modeling": "gpt2", "translation": "marian"}
# Tokens of a prompt are drawn from here on, after the special tokens.
_FIRST_TOKEN = 3


@dataclass(frozen=True, kw_only=True)
class GenerationCase:
    """The sizes of the models, and what they generate.

    Attributes:
        task: one of `PEERS`; in translation the prompt is the source, read by an encoder with as many layers.
        batch, prompt, new_tokens: number of sequences, and tokens of each: given and generated (always all).
        cache: "dynamic" or "static"; transformers compiles decoding with a static one on an accelerator.
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
    cache: str = "dynamic"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"


def measure_generation(case: GenerationCase, variants: Sequence[str], repeats: int = 3) -> list[Measurement]:
    """Time the peer and our models, after checking that each of ours generates what it predicts without a cache.

    Raises:
        RuntimeError: a model generates something else.
    """
    torch.manual_seed(0)
    prompts = torch.randint(_FIRST_TOKEN, case.vocabulary, (case.batch, case.prompt), device=case.device)
    peer, cached = PEERS[case.task], {}
    models: dict[str, Any] = {peer: _peer(case), **{name: _ours(case, name) for name in variants}}
    for name in variants:
        check_generation(models[name], case.num_beams, case.prompt)
    for name, model in models.items():
        model.to(device=case.device, dtype=case.dtype).eval()
        output = _generate(model, case, prompts)
        cached[name] = cache_bytes(output.past_key_values)
        if name != peer and case.num_beams == 1:
            _check(name, model, prompts, output.sequences)
    turns = {name: partial(_generate, model, case, prompts) for name, model in models.items()}
    times = time_turns(turns, peer, repeats, warmup=0, device=case.device)
    return [
        Measurement(name, case, False, *times[name], cache_bytes=cached[name], parameters=models[name].num_parameters())
        for name in models
    ]


def _ours(case: GenerationCase, synthesizer: str) -> PreTrainedModel:
    decoder_only = case.task == "language-modeling"
    config = SynthesizerConfig(
        vocab_size=case.vocabulary,
        d_model=case.width,
        num_heads=case.heads,
        d_ff=4 * case.width,
        num_layers=case.layers,
        synthesizer=synthesizer,
        max_position_embeddings=case.prompt + case.new_tokens,
        # As in the peer.
        position_embedding_type="learned" if decoder_only else "sinusoidal",
        pre_norm=decoder_only,
        eos_token_id=None,
    )
    return SynthesizerForCausalLM(config) if decoder_only else SynthesizerForConditionalGeneration(config)


def _peer(case: GenerationCase) -> PreTrainedModel:
    # No token ends a sequence, and the activation is ours, which is faster than theirs.
    common: dict[str, Any] = {"vocab_size": case.vocabulary, "activation_function": "relu"}
    common |= {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    longest = case.prompt + case.new_tokens
    if case.task == "language-modeling":
        decoder = GPT2Config(n_positions=longest, n_embd=case.width, n_layer=case.layers, n_head=case.heads, **common)
        return GPT2LMHeadModel(decoder)
    sizes = {"layers": case.layers, "attention_heads": case.heads, "ffn_dim": 4 * case.width}
    common |= {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    config = MarianConfig(
        d_model=case.width,
        scale_embedding=True,
        max_position_embeddings=longest,
        forced_eos_token_id=None,
        decoder_start_token_id=1,
        **common,
    )
    return MarianMTModel(config)


def _generate(model: Any, case: GenerationCase, prompts: Tensor) -> Any:
    return model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=case.new_tokens,
        num_beams=case.num_beams,
        do_sample=False,
        cache_implementation=None if case.cache == "dynamic" else case.cache,
        return_dict_in_generate=True,
    )


@torch.no_grad()
def _check(name: str, model: Any, prompts: Tensor, sequences: Tensor) -> None:
    """Check that greedy search generated what one pass over the whole text predicts, except for ties."""
    if model.config.is_encoder_decoder:
        predicted = model(prompts, decoder_input_ids=sequences[:, :-1]).logits.argmax(-1)
        agreed = predicted == sequences[:, 1:]
    else:
        predicted = model(sequences[:, :-1]).logits[:, prompts.shape[1] - 1 :].argmax(-1)
        agreed = predicted == sequences[:, prompts.shape[1] :]
    share = float(agreed.float().mean())
    if share < (0.99 if model.dtype == torch.float32 else 0.9):
        raise RuntimeError(f"{name}: only {share:.1%} of the tokens generated with a cache are those predicted without")
