"""Two processes that train one model, as torchrun starts them, on a CPU."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from training.conftest import SMALL
from training.runs import Small, logged, start

OPTIONS = ("dropout_rate=0", "logging_steps=1", "max_steps=4")


def _run(rank: int, port: int, arguments: list[str]) -> subprocess.Popen[str]:
    processes = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    environment = {
        **os.environ,
        **{name: str(value) for name, value in processes.items()},
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "synthetic_attention.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _run_both(arguments: list[str]) -> tuple[list[int | None], list[str]]:
    """Exit codes and standard errors."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    processes = [_run(rank, port, arguments) for rank in range(2)]
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], errors


@pytest.mark.slow
def test_two_processes_train_as_one_with_accumulation(corpus: Path, tmp_path: Path, small: Small) -> None:
    """Each update is of the two batches that one process would have accumulated; one process writes."""
    sets = [word for setting in (*SMALL, *OPTIONS) for word in ("--set", setting)]
    arguments = ["train", "translation", "--data", str(corpus), "--source", "en", "--target", "de", "--seed", "3"]
    codes, errors = _run_both([*arguments, "--output", str(tmp_path / "two"), *sets])
    assert codes == [0, 0], errors
    assert errors[0].count("the best model is in") == 1
    assert "the best model is in" not in errors[1]
    # An error of the main process ends both in one line.
    with FileLock(tmp_path / "two/.lock"):
        codes, errors = _run_both(["train", "translation", "--output", str(tmp_path / "two"), "--resume"])
    assert codes == [1, 1]
    last = [error.splitlines()[-1] for error in errors]
    assert "another process is training this run" in last[0]
    assert last[1] == "Error: the main process failed; see its message"
    assert "Traceback" not in "".join(errors)
    start(corpus, tmp_path / "one", small(*OPTIONS, "gradient_accumulation_steps=2"))
    for name in ("step", "tokens", "loss", "eval_loss"):
        expected, got = (logged(tmp_path / run, name) for run in ("one", "two"))
        assert got == pytest.approx(expected, rel=1e-3 if "loss" in name else 0), name
