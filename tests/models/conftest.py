"""A tiny model and a padded batch; every axis has a size of its own, so that none can be taken for another."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from synthetic_attention.models import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
)

VOCABULARY, LONGEST = 53, 19


@pytest.fixture
def tiny_config() -> Callable[..., SynthesizerConfig]:
    def build(**fields: Any) -> SynthesizerConfig:
        sizes = {
            "vocab_size": VOCABULARY,
            "d_model": 22,
            "num_heads": 2,
            "d_ff": 31,
            "num_layers": 2,
            "max_position_embeddings": LONGEST,
            # Untied, so that an untrained model does not merely repeat its input.
            "tie_word_embeddings": False,
        }
        return SynthesizerConfig(**{**sizes, **fields})

    return build


def _distinct_positions(model: torch.nn.Module) -> None:
    """Draw relative biases, which start as zeros, and R, which starts almost uniform, so that they matter."""
    for name, parameter in model.named_parameters():
        if "relative_bias" in name or name.endswith("table"):
            torch.nn.init.normal_(parameter)


@pytest.fixture
def tiny(tiny_config: Callable[..., SynthesizerConfig]) -> Callable[..., SynthesizerForConditionalGeneration]:
    """Build a sequence-to-sequence model in eval mode."""

    def build(**fields: Any) -> SynthesizerForConditionalGeneration:
        model = SynthesizerForConditionalGeneration(tiny_config(**fields)).eval()
        _distinct_positions(model)
        return model

    return build


@pytest.fixture
def tiny_lm(tiny_config: Callable[..., SynthesizerConfig]) -> Callable[..., SynthesizerForCausalLM]:
    """Build a language model in eval mode."""

    def build(**fields: Any) -> SynthesizerForCausalLM:
        model = SynthesizerForCausalLM(tiny_config(**fields)).eval()
        _distinct_positions(model)
        return model

    return build


@pytest.fixture
def source() -> tuple[Tensor, Tensor]:
    """Three rows of seven slots: full, padded on the left, padded on the right; and their mask."""
    ids = torch.randint(3, VOCABULARY, (3, 7))
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, :3] = 0
    mask[2, 5:] = 0
    return ids.masked_fill(mask == 0, 0), mask
