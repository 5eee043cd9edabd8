"""Runs killed with SIGKILL at random moments, and continued by the same command, equal the unbroken run.

`KILLS=14 pytest -m slow tests/training/test_kills.py` kills each kind of run 14 times; a minute for four kills.
"""

import os
import random
import subprocess
import time
from itertools import count
from pathlib import Path

import pytest

from training.conftest import SMALL
from training.runs import assert_same_runs, end_processes, start_processes

KILLS = int(os.environ.get("KILLS", "2"))


def _run(arguments: list[str], processes: int, seconds: float) -> bool:
    """Whether the command ended by itself within this time; otherwise all its processes are killed."""
    started = start_processes(arguments, processes)
    try:
        errors = end_processes(started, seconds)
    except subprocess.TimeoutExpired:
        return False
    assert {process.returncode for process in started} == {0}, errors
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["single", "ddp", "fsdp"])
def test_killed_runs_equal_unbroken_ones(corpus: Path, tmp_path: Path, kind: str) -> None:
    settings = (*SMALL, "average_checkpoints=3", "label_smoothing_factor=0.1")
    arguments = ["train", "translation", "--data", str(corpus), "--source", "en", "--target", "de", "--steps", "60"]
    arguments += [word for setting in settings for word in ("--set", setting)]
    arguments += ["--sharding", "fsdp"] if kind == "fsdp" else []
    processes = 1 if kind == "single" else 2
    started = time.monotonic()
    assert _run([*arguments, "--output", str(tmp_path / "unbroken")], processes, 300)
    whole = time.monotonic() - started
    rng, kills = random.Random(kind), 0
    for number in count():
        if kills >= KILLS:
            break
        run = tmp_path / f"run-{number}"
        command = [*arguments, "--output", str(run), "--resume-if-exists"]
        for _ in range(8):
            # Most of the time before a third of it goes to imports.
            if _run(command, processes, whole * rng.uniform(0.3, 1.1)):
                break
            kills += 1
        else:
            assert _run(command, processes, 300)
        assert_same_runs(tmp_path / "unbroken", run)
    assert not [path.name for path in tmp_path.rglob("*") if "partial" in path.name]
