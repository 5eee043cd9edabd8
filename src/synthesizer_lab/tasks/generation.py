"""Text generation for all tasks: the settings, and one loop over batches of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from synthetic_attention.generation import generate
from synthetic_attention.models import SynthesizerForConditionalGeneration
from synthetic_attention.validation import LIMIT

from ..data.examples import padded_inputs, token_batches
from ..data.tokenizer import Tokenizer, Tokens, special_ids
from ..errors import UserError
from .base import EvaluationLoop, Task

_BEAMS = {"num_beams": 4, "length_penalty": 0.6, "min_new_tokens": 0, "max_new_tokens": None, "no_repeat_ngram_size": 0}
_SAMPLING = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": None}
# The range of an option is from 0, or this, to LIMIT − 1, or this. A power of a length has to be a float.
_LEAST = {"num_beams": 1, "max_new_tokens": 1, "temperature": 1e-6, "top_p": 1e-6}
_MOST = {"length_penalty": 30, "top_p": 1}


def make_generation_config(options: Mapping[str, Any], **defaults: Any) -> GenerationConfig:
    """Settings of generation: beam search with 4 beams, updated by a task's `defaults` and by `options`.

    The options are fields of transformers' `GenerationConfig`. With `do_sample` they are `temperature` (0 takes the
    most probable token), `top_k` (0: all tokens), `top_p` and `max_new_tokens`. Greedy search (one beam) has no length
    penalty.

    Raises:
        UserError: an option is unknown or has an invalid value.
    """
    known = {**_BEAMS, **defaults}
    if options.get("do_sample"):
        known = {name: defaults.get(name, value) for name, value in _SAMPLING.items()}
    if unknown := options.keys() - known:
        raise UserError(f"got unknown option {', '.join(sorted(unknown))}; expected some of: {', '.join(known)}")
    values = {"do_sample": False, "num_beams": 1, **known, **options}
    for name, value in values.items():
        least, most = _LEAST.get(name, 0), _MOST.get(name, LIMIT - 1)
        or_zero = " or 0 (the most probable token)" if name == "temperature" else ""
        if value is not None and not least <= value <= most and not (or_zero and value == 0):
            raise UserError(f"got {name}={value}; expected a number from {least:g} to {most}{or_zero}")
    fewest, limit = values.get("min_new_tokens", 0), values["max_new_tokens"]
    if limit is not None and limit <= fewest:
        raise UserError(f"got max_new_tokens={limit}; expected more than min_new_tokens={fewest}")
    if values["num_beams"] == 1:
        values["length_penalty"] = 1.0
    if values.get("temperature") == 0:
        values = {"do_sample": False, "num_beams": 1, "max_new_tokens": limit}
    return GenerationConfig(**values)


def evaluation_config(task: Task, options: Mapping[str, Any]) -> GenerationConfig | None:
    """The settings of generation in an evaluation of `task`, updated by `options`; None if it generates no text."""
    if issubclass(task.model_class, SynthesizerForConditionalGeneration):
        return task.generation_config(options)
    # Language models generate, but are scored without.
    return Task.generation_config(task, options)


def generation_settings(config: GenerationConfig) -> dict[str, Any]:
    """The settings as plain values, for result files."""
    return {name: getattr(config, name) for name in _BEAMS}


def generation_label(config: GenerationConfig) -> str:
    """The settings as a part of file names."""
    names = zip(("beam", "penalty", "min", "max", "ngram"), generation_settings(config).values(), strict=True)
    return ".".join(f"{name}{value:g}" for name, value in names if value)


def output_limit(source_length: int, max_length: int) -> int:
    """The most tokens to generate for a source: twice its own and 32 more, within the model's maximum length.

    A batch has the limit of its longest source. Without a bound in proportion to the source, a model that has not
    learned to stop would generate the maximum for every batch.
    """
    return min(2 * source_length + 32, max_length - 1)


def generate_tokens(loop: EvaluationLoop, prompts: Sequence[Tokens], generation: GenerationConfig) -> list[list[int]]:
    """The generated tokens for each prompt, without the prompt of a causal model and without `</s>` and padding.

    Sources of an encoder are padded to a batch. Prompts of a causal model form batches of equal length, so that no
    prompt depends on the others; it writes none of the special tokens except `</s>`.
    """
    model, config = loop.model, loop.model.config
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    beams, most = generation.num_beams or 1, generation.max_new_tokens
    if beams > config.vocab_size:
        raise UserError(f"got num_beams={beams}; expected at most the size of the vocabulary, {config.vocab_size}")
    names = _SAMPLING if generation.do_sample else ("do_sample", *_BEAMS)
    settings = {name: getattr(generation, name) for name in names}
    if not config.is_encoder_decoder:
        settings["suppress_tokens"] = suppressed_tokens(loop.tokenizer)
    if loop.is_sharded:
        settings["synced_gpus"] = True

    def limit(length: int) -> int:
        room = output_limit(length, loop.max_length) if config.is_encoder_decoder else loop.max_length - length
        return min(room, most or room)

    def step(rows: list[int]) -> list[list[int]]:
        inputs = padded_inputs([prompts[row] for row in rows], config.pad_token_id or 0)
        batch = {name: value.to(model.device) for name, value in inputs.items()}
        width = batch["input_ids"].shape[1]
        bounds = {"max_new_tokens": limit(width)}
        if generation.min_new_tokens:
            bounds["min_new_tokens"] = min(generation.min_new_tokens, bounds["max_new_tokens"])
        output = generate(model, **batch, **{**settings, **bounds})
        start, end = 1 if config.is_encoder_decoder else width, config.eos_token_id
        texts = [row[start:] for row in output.tolist()]
        return [row[: row.index(end)] if end in row else row for row in texts]

    batches = None
    if not config.is_encoder_decoder:
        costs = np.array([beams * (length + limit(length)) for length in lengths.tolist()])
        groups = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        batches = [batch for rows in groups for batch in token_batches(costs, rows, loop.batch_tokens)]
    # Tensors of inference mode, in which a sharded model would gather its weights, cannot be trained with.
    with torch.no_grad() if loop.is_sharded else torch.inference_mode():
        return loop.run_each(lengths * beams, step, batches)


def suppressed_tokens(tokenizer: Tokenizer) -> list[int]:
    """The special tokens that no text contains: all except `</s>`. Tokenizers from elsewhere lack some."""
    return sorted(special_ids(tokenizer) - {tokenizer.eos_token_id})
