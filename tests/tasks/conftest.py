"""A small run of any task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synthesizer_lab.training.run import start_run
from synthesizer_lab.training.settings import read_settings
from training.conftest import SMALL


@pytest.fixture
def train() -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """Train a task on data for two steps; returns the metrics and the report."""

    def run(task: Any, data: Path, output: Path, *overrides: str) -> tuple[dict[str, Any], list[str]]:
        lines: list[str] = []
        overrides = (*SMALL, "batch_tokens=400", "warmup_steps=2", "eval_steps=2", "max_steps=2", *overrides)
        settings = read_settings(synthesizer="random", preset="tiny", seed=1, overrides=overrides)
        return start_run(task=task, data=data, settings=settings, output=output, report=lines.append).metrics, lines

    return run


@pytest.fixture
def metrics() -> Any:
    """scikit-learn's; what needs them is not tested where the extra "glue" is not installed."""
    pytest.importorskip("scipy.stats", reason="scipy is not installed")
    return pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
