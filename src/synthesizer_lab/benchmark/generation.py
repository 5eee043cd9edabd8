"""`generate()` of whole models with random weights: ours, and Hugging Face models of the same size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration

from synthetic_attention.generation import generate
from synthetic_attention.models import SynthesizerConfig, SynthesizerForCausalLM, SynthesizerForConditionalGeneration
from synthetic_attention.models.cache import cache_bytes
from synthetic_attention.validation import LIMIT

from ..errors import UserError
from .harness import Measurement, time_turns

# The Hugging Face models of each task; speedups are over the first.
PEERS = {"language-modeling": ("gpt2",), "translation": ("marian", "t5")}
# Tokens of a prompt are drawn from here on, after the special tokens.
_FIRST_TOKEN = 3


@dataclass(frozen=True, kw_only=True)
class GenerationCase:
    """The sizes of the models, and what they generate.

    Attributes:
        task: one of `PEERS`; in translation the prompt is the source, read by an encoder with as many layers.
        batch, new_tokens: number of sequences, and tokens generated for each (always all).
        prompt: tokens of the shortest and of the longest prompt of a batch; the others lie evenly between.

    Raises:
        UserError: numbers out of range, or prompts whose shortest is longer than the longest.
    """

    task: str = "language-modeling"
    batch: int = 32
    prompt: tuple[int, int] = (16, 16)
    new_tokens: int = 256
    num_beams: int = 1
    layers: int = 6
    width: int = 512
    heads: int = 8
    vocabulary: int = 8000
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def __post_init__(self) -> None:
        shortest, longest = self.prompt
        if not (0 < shortest <= longest < LIMIT and 0 < self.batch < LIMIT and 0 < self.num_beams < LIMIT):
            raise UserError(
                f"got batch {self.batch}, {self.num_beams} beams, prompts of {shortest} to {longest} tokens; expected "
                f"at least 1 of each, less than {LIMIT}, and the shortest prompt first"
            )

    def prompts(self) -> dict[str, Tensor]:
        """Random `input_ids` and their `attention_mask`: padded on the right for an encoder, else on the left."""
        shortest, longest = self.prompt
        lengths = torch.linspace(shortest, longest, self.batch).round()
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        mask = mask if self.task == "translation" else mask.flip(1)
        ids = torch.randint(_FIRST_TOKEN, self.vocabulary, mask.shape) * mask
        return {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}


@dataclass(frozen=True)
class Contender:
    """A model, and its `generate()` or another function with the same arguments."""

    model: Any
    generate: Callable[..., Any]

    def __call__(self, case: GenerationCase, inputs: dict[str, Tensor], **options: Any) -> Any:
        """Generate what the case says, from a batch of prompts."""
        options |= {"max_new_tokens": case.new_tokens, "num_beams": case.num_beams, "do_sample": False}
        return self.generate(**inputs, **options)


def measure_generation(cases: Sequence[GenerationCase], variants: Sequence[str], repeats: int = 3) -> list[Measurement]:
    """Time the peers and our models; the cases differ only in batch, prompt, number of beams, and number of tokens."""
    longest, found = max(case.prompt[1] + case.new_tokens for case in cases), list[Measurement]()
    contenders = make_contenders(cases[0], variants, longest)
    for case in cases:
        inputs, cached = case.prompts(), {}
        for name, contender in contenders.items():
            # Only transformers' loop has a cache to return.
            output = Contender(contender.model, contender.model.generate)(case, inputs, return_dict_in_generate=True)
            cached[name] = cache_bytes(output.past_key_values)
        turns = {name: partial(contender, case, inputs) for name, contender in contenders.items()}
        # The first call on an accelerator may compile.
        times = time_turns(turns, repeats, warmup=int(case.device != "cpu"), device=case.device)
        for name, contender in contenders.items():
            size = contender.model.num_parameters()
            found.append(Measurement(name, case, False, *times[name], cache_bytes=cached[name], parameters=size))
    return found


def make_contenders(case: GenerationCase, variants: Sequence[str], longest: int) -> dict[str, Contender]:
    """The peers first, then our models, all with random weights, for sequences of up to `longest` tokens."""
    torch.manual_seed(0)
    found: dict[str, Contender] = {}
    for name in PEERS[case.task]:
        model = _peer(name, case, longest).to(device=case.device, dtype=case.dtype).eval()
        found[name] = Contender(model, model.generate)
    for name in variants:
        model = _ours(name, case, longest).to(device=case.device, dtype=case.dtype).eval()
        found[name] = Contender(model, partial(generate, model))
    return found


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


def _peer(name: str, case: GenerationCase, longest: int) -> Any:
    # No token ends a sequence, and the activation is ours, which is faster than GPT-2's and Marian's own.
    common: dict[str, Any] = {"vocab_size": case.vocabulary, "eos_token_id": None, "pad_token_id": 0}
    common |= {"decoder_start_token_id": 1, "d_model": case.width}
    sizes: dict[str, Any]
    if name == "t5":
        sizes = {"num_layers": case.layers, "num_heads": case.heads, "d_kv": case.width // case.heads}
        return T5ForConditionalGeneration(T5Config(d_ff=4 * case.width, **sizes, **common))
    common |= {"bos_token_id": 1, "activation_function": "relu"}
    if name == "gpt2":
        sizes = {"n_layer": case.layers, "n_head": case.heads, "n_positions": longest}
        return GPT2LMHeadModel(GPT2Config(n_embd=common.pop("d_model"), **sizes, **common))
    sizes = {"layers": case.layers, "attention_heads": case.heads, "ffn_dim": 4 * case.width}
    common |= {f"{side}_{part}": size for side in ("encoder", "decoder") for part, size in sizes.items()}
    common |= {"scale_embedding": True, "max_position_embeddings": longest, "forced_eos_token_id": None}
    return MarianMTModel(MarianConfig(**common))
