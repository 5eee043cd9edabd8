"""Devices, bfloat16 and torch.compile."""

from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.translation import Translation
from synthesizer_lab.training.device import choose_device, choose_training_device
from synthesizer_lab.training.evaluation import evaluate_run
from synthesizer_lab.training.run_folder import RunFolder
from training.runs import Small, generate_lines, logged, start


def test_devices_that_are_there() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    expected = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    assert choose_device() == choose_training_device() == expected


def test_a_launcher_that_started_one_process_of_several_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `accelerate launch --cpu --num_processes 2` sets the environment."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert choose_training_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(UserError, match=r"one process, .* torchrun"):
        choose_training_device("cpu")


def test_devices_that_are_not_here() -> None:
    for name in ("hpu", "cpu:x", ""):
        with pytest.raises(UserError, match=rf"got device '{name}'; expected one of: cpu"):
            choose_device(name)


def test_bfloat16_trains_with_weights_in_float32(corpus: Path, tmp_path: Path, small: Small) -> None:
    runs = [tmp_path / name for name in ("false", "true")]
    for run in runs:
        start(corpus, run, small("dropout_rate=0", f"bf16={run.name}"), device="cpu")
    logs = [logged(run, "loss") for run in runs]
    assert logs[0] != logs[1]
    assert logs[0] == pytest.approx(logs[1], rel=2e-2)
    assert {tensor.dtype for tensor in load_file(runs[1] / "model.safetensors").values()} == {torch.float32}
    assert yaml.safe_load((runs[1] / "run.yaml").read_text(encoding="utf-8"))["versions"]["device"] == "cpu"
    assert RunFolder(runs[0]).load(Translation("en", "de"), torch.device("cpu"), bf16=True)[0].dtype == torch.bfloat16
    scores = [evaluate_run(runs[0], num_beams=1, device="cpu", bf16=bf16) for bf16 in (False, True)]
    assert [result["dtype"] for result in scores] == ["float32", "bfloat16"]
    assert scores[0]["predictions"] != scores[1]["predictions"]
    assert generate_lines(runs[0], ["one", ""], num_beams=1, bf16=True)[0][1] == ""
