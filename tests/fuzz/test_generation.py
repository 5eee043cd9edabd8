"""The decode loop against `model.generate()`: random models, settings and inputs give the same tokens or errors."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from models.conftest import HEADS, SIZES
from synthetic_attention import SynthesizerConfig, generate

CASES, GROUPS = 3000 if os.environ.get("FUZZ") == "long" else 300, 10
SYNTHESIZERS = (
    *("vanilla", "random", "dense", "factorized_random", "factorized_dense", "random+vanilla", "dense+random"),
    *("random/vanilla", "dynamic_conv", "local_dense"),
)
# Each setting is drawn in some of the cases: its share, and its values.
SETTINGS: dict[str, tuple[float, list[Any]]] = {
    "num_beams": (0.5, [1, 2, 3, 4]),
    "do_sample": (0.25, [True, True, True, 1]),
    "num_return_sequences": (0.2, [1, 2, 3]),
    "length_penalty": (0.3, [0.6, -1.0, 2.0, 0.0, -1e3]),
    "early_stopping": (0.3, [True, False, "never"]),
    "no_repeat_ngram_size": (0.3, [-1, 0, 1, 2, 3]),
    "min_length": (0.1, [0, 4, 9]),
    "min_new_tokens": (0.25, [1, 3, 6]),
    "suppress_tokens": (0.25, [[5], [4, 5], [-1], [31], [3, 4, 5, 6, 7]]),
    "eos_token_id": (0.4, [None, 2, [2, 5], -1, [2, 99]]),
    "pad_token_id": (0.1, [None, 1, 2]),
    "temperature": (0.2, [0.7, 1.0, 1.9]),
    "top_k": (0.2, [0, 3, 50]),
    "top_p": (0.2, [0.6, 1.0]),
    "repetition_penalty": (0.1, [1.3]),
    "begin_suppress_tokens": (0.1, [[4]]),
    "forced_eos_token_id": (0.1, [2]),
    "renormalize_logits": (0.1, [True]),
    "use_cache": (0.05, [True, False, None]),
    "cache_implementation": (0.03, ["static"]),
    "prompt_lookup_num_tokens": (0.03, [2]),
}


def _draw(choice: random.Random) -> dict[str, Any]:
    # In half of the cases few settings, so that the searches of this package compute them.
    scale = choice.choice([0.3, 1.0])
    settings = {
        name: choice.choice(values) for name, (share, values) in SETTINGS.items() if choice.random() < share * scale
    }
    settings[choice.choice(["max_new_tokens", "max_length"])] = choice.choice([1, 4, 8, 11])
    if choice.random() < 0.04:
        settings["num_beams"] = 25
    if settings.get("num_return_sequences", 1) > settings.get("num_beams", 1) and choice.random() < 0.9:
        settings["num_beams"] = 3
    return settings


def _model(choice: random.Random, vocabulary: int) -> Any:
    fields = {
        "vocab_size": vocabulary,
        "num_layers": 2,
        "synthesizer": choice.choice(SYNTHESIZERS),
        "position_embedding_type": choice.choice(["sinusoidal", "learned", "relative", "rotary"]),
        "pre_norm": choice.random() < 0.5,
        "lm_head_bias": choice.random() < 0.3,
        "use_bias": choice.random() < 0.5,
        "qk_norm": choice.random() < 0.3,
        "d_kv": 6,
    }
    model = HEADS[choice.choice(["seq2seq", "causal"])](SynthesizerConfig(**{**SIZES, **fields})).eval().double()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or "relative_attention_bias" in name or name.endswith("table"):
            torch.nn.init.normal_(parameter)
    # So that texts end, at different lengths.
    model.lm_head.weight.data[2] *= 2
    return model


def _inputs(choice: random.Random, model: Any, vocabulary: int) -> dict[str, Any]:
    """Sources or prompts with a mask."""
    lengths = [choice.choice([1, 2, 3, 5]) for _ in range(choice.choice([1, 1, 2, 5]))]
    longest = max(lengths)
    ids, mask = torch.randint(3, vocabulary, (len(lengths), longest)), torch.ones(len(lengths), longest).long()
    on_right = model.config.is_encoder_decoder is (choice.random() < 0.95)
    for row, length in enumerate(lengths):
        mask[row, slice(length, None) if on_right else slice(longest - length)] = 0
    ids = ids.masked_fill(mask == 0, 0)
    inputs: dict[str, Any] = {"input_ids": ids.int() if choice.random() < 0.1 else ids}
    if choice.random() < 0.9:
        inputs["attention_mask"] = mask
    if model.config.is_encoder_decoder and choice.random() < 0.1:
        inputs["decoder_input_ids"] = torch.randint(3, vocabulary, (len(ids), 2))
    return inputs


def _outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The tokens and the state of the random numbers after them, or the type of the error."""
    torch.manual_seed(3)
    try:
        tokens: Tensor = function(*args, **kwargs)
    except Exception as error:
        return type(error)
    return tokens.dtype, tokens.tolist(), torch.get_rng_state().tolist()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("group", range(GROUPS))
def test_random_calls(group: int) -> None:
    for seed in range(group, CASES, GROUPS):
        choice = random.Random(seed)
        torch.manual_seed(seed)
        vocabulary = choice.choice([8, 13, 31])
        model, settings = _model(choice, vocabulary), _draw(choice)
        inputs = _inputs(choice, model, vocabulary) | settings
        expected, found = _outcome(model.generate, **inputs), _outcome(generate, model, **inputs)
        assert found == expected, f"seed {seed}: {model.config.synthesizer}, {settings}, {inputs}"
