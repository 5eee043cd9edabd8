"""A small corpus and settings of a model that trains in seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from synthetic_attention.data.cldr import write_cldr_corpus
from synthetic_attention.training.settings import Settings, read_settings

SMALL = (
    *("d_model=16", "num_heads=2", "num_layers=1", "d_ff=32", "max_position_embeddings=64", "vocab_size=300"),
    *("batch_tokens=200", "warmup_steps=5", "eval_interval=4", "log_interval=2"),
)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_cldr_corpus(folder, train=60, held_out=6)
    return folder


@pytest.fixture
def small() -> Callable[..., Settings]:
    def make(*overrides: str, synthesizer: str = "random+vanilla", **changes: Any) -> Settings:
        return read_settings(
            synthesizer=synthesizer, preset="tiny", seed=3, overrides=[*SMALL, "steps=8", *overrides], **changes
        )

    return make
