"""Runs that tests start, and what they compare of them."""

import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from synthesizer_lab.tasks.translation import Translation
from synthesizer_lab.training.evaluation import generate_chunks
from synthesizer_lab.training.run import Outcome, start_run
from synthesizer_lab.training.settings import Settings

Small = Callable[..., Settings]


def start(data: Path, output: Path, settings: Settings, **options: Any) -> Outcome:
    """By default a run of translation."""
    options = {"task": Translation("en", "de"), "report": silent, **options}
    return start_run(data=data, settings=settings, output=output, **options)


def start_and_kill(data: Path, output: Path, settings: Settings, step: int, **options: Any) -> None:
    with pytest.raises(KilledError):
        start(data, output, settings, callbacks=[Kill(step, die)], **options)


def generate_lines(run: Path, lines: Sequence[str], **options: Any) -> tuple[list[str], int]:
    (result,) = generate_chunks(run, [lines], **options)
    return result


class Kill(TrainerCallback):
    """Does something at the end of one step."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step = step
        self.action = action

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step - 1:
            self.action()


class KilledError(BaseException):
    """No Exception: as after SIGKILL, nothing handles it."""


@contextmanager
def on_call(owner: Any, name: str, number: int, action: Callable[[], object], after: bool = False) -> Iterator[None]:
    """Does something before, or after, the n-th call of a function inside."""
    original, calls = getattr(owner, name), itertools.count(1)

    def call(*args: Any, **kwargs: Any) -> Any:
        due = next(calls) == number
        if due and not after:
            action()
        result = original(*args, **kwargs)
        if due and after:
            action()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can have more bytes inside."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def start_processes(
    arguments: Sequence[str], processes: int, second: Sequence[str] = ()
) -> list[subprocess.Popen[str]]:
    """The command in several processes, as torchrun starts them; all but the first have further arguments."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    started = []
    for rank in range(processes):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment |= {name: str(value) for name, value in place.items() if processes > 1}
        command = [sys.executable, "-m", "synthesizer_lab", *arguments, *(second if rank else ())]
        output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, **output, text=True, env=environment))
    return started


def end_processes(started: list[subprocess.Popen[str]], seconds: float) -> list[str]:
    """The standard errors of the processes, which are killed if they do not end within this time."""
    end = time.monotonic() + seconds
    try:
        return [process.communicate(timeout=max(0.0, end - time.monotonic()))[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def die() -> None:
    raise KilledError


def weights(run: Path) -> dict[str, torch.Tensor]:
    (checkpoint,) = (run / "checkpoints").iterdir()
    return {
        **load_file(checkpoint / "model.safetensors"),
        **{f"best.{name}": value for name, value in load_file(run / "model.safetensors").items()},
    }


def assert_same_runs(one: Path, other: Path) -> None:
    """The same weights in the checkpoint and as the best model, and the same log."""
    expected, got = weights(one), weights(other)
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        assert torch.equal(value, got[name]), name
    assert without_times(one / "log.jsonl") == without_times(other / "log.jsonl")


def logged(run: Path, name: str) -> list[float]:
    """The values of one key of the log."""
    return [entry[name] for entry in without_times(run / "log.jsonl") if name in entry]


def silent(line: str) -> None:
    pass


def without_times(path: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in entry.items() if k not in ("minutes", "tokens_per_second")} for entry in entries]


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
