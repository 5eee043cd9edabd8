"""A small corpus and settings of a model that trains in seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from synthesizer_lab.data.phrases import write_phrases
from synthesizer_lab.training.settings import Settings, read_settings
from training.runs import start

SMALL = (
    *("d_model=16", "num_heads=2", "num_layers=1", "d_ff=32", "max_position_embeddings=64", "vocab_size=300"),
    *("batch_tokens=200", "warmup_steps=5", "eval_steps=4", "logging_steps=2"),
)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_phrases(folder, train=60, held_out=6)
    return folder


def small_settings(*overrides: str, synthesizer: str = "random+vanilla", **changes: Any) -> Settings:
    overrides = (*SMALL, "max_steps=8", *overrides)
    return read_settings(synthesizer=synthesizer, preset="tiny", overrides=overrides, **{"seed": 3, **changes})


@pytest.fixture
def small() -> Callable[..., Settings]:
    return small_settings


@pytest.fixture(scope="session")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps that nothing interrupts."""
    run = tmp_path_factory.mktemp("straight") / "run"
    start(corpus, run, small_settings())
    return run
