"""Several processes that share one model (FSDP2), as torchrun starts them, on a CPU."""

import os
import shutil
import subprocess
import sys
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainerCallback

from synthesizer_lab.errors import UserError
from synthesizer_lab.training.evaluation import evaluate_run
from synthesizer_lab.training.options import Sharding
from synthesizer_lab.training.run import resume_run
from synthesizer_lab.training.run_folder import RunFolder
from training import sharded_runs
from training.conftest import SMALL
from training.runs import Small, logged, silent, start, weights

TESTS = Path(__file__).parents[1]


def launch(processes: int, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in several processes."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *sys.path])
    done = subprocess.run(
        [*torchrun, *arguments], capture_output=True, text=True, timeout=240, env=environment, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def sharded(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    launch(2, sharded_runs.__file__, str(corpus), str(folder))
    return folder


@pytest.mark.slow
def test_two_processes_train_as_one_with_accumulation(
    corpus: Path, sharded: Path, tmp_path: Path, small: Small
) -> None:
    """With a checkpoint after four steps, from which the run resumes."""
    one = tmp_path / "one"
    start(corpus, one, small(*sharded_runs.OPTIONS, "gradient_accumulation_steps=2", "average_checkpoints=2"))
    for name in ("step", "tokens", "loss", "grad_norm", "eval_loss", "eval_bleu", "average_loss"):
        expected, got = (logged(run, name) for run in (one, sharded / "adamw"))
        assert got == pytest.approx(expected, abs=1e-5 if name != "step" else 0), name
    expected_weights, got_weights = weights(one), weights(sharded / "adamw")
    assert expected_weights.keys() == got_weights.keys()
    for name, value in expected_weights.items():
        # The gradient of a bias of the keys is zero but for rounding, which Adam scales up.
        if name.endswith("k_proj.bias"):
            continue
        assert (value - got_weights[name]).abs().max() < 1e-5, name


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_four_processes_then_two_then_one_train_as_one(
    sharding: Sharding, corpus: Path, tmp_path: Path, small: Small
) -> None:
    arguments = ["train", "translation", "--data", str(corpus), "--source", "en", "--target", "de", "--seed", "3"]
    arguments += [word for setting in (*SMALL, "dropout_rate=0", "logging_steps=1") for word in ("--set", setting)]
    arguments += ["--output", str(tmp_path / "run"), "--batches-per-update", "4", "--resume-if-exists"]
    for processes, steps in ((4, "4"), (2, "8")):
        launch(processes, "-m", "synthesizer_lab", *arguments, "--sharding", sharding, "--steps", steps)
    resume_run(tmp_path / "run", max_steps=12, sharding="none", report=silent)
    settings = small("dropout_rate=0", "logging_steps=1", "max_steps=12", "gradient_accumulation_steps=4")
    start(corpus, tmp_path / "one", settings)
    for name in ("step", "tokens", "loss", "grad_norm", "eval_loss", "eval_bleu"):
        expected, got = (logged(tmp_path / run, name) for run in ("one", "run"))
        assert got == pytest.approx(expected, abs=0 if name in ("step", "tokens", "eval_bleu") else 1e-5), name


@pytest.mark.slow
def test_weights_are_those_without_sharding(corpus: Path, sharded: Path, tmp_path: Path, small: Small) -> None:
    """Of new and continued runs bit for bit, with `fixed_random`'s buffer."""
    new: dict[str, Tensor] = {}

    class Copy(TrainerCallback):
        def on_train_begin(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
            new.update({name: value.clone() for name, value in model.state_dict().items()})

    start(corpus, tmp_path / "one", small(*sharded_runs.OPTIONS, "max_steps=1"), callbacks=[Copy()])
    loaded = load_file(sharded / "checkpointing" / "model.safetensors")
    assert any(name.endswith("table") for name in loaded)
    for name, expected in (("new", new), ("from", loaded)):
        got = load_file(sharded / f"{name}.safetensors")
        assert got.keys() <= expected.keys()
        assert all(torch.equal(value, expected[key]) for key, value in got.items()), name


@pytest.mark.slow
@pytest.mark.parametrize(("run", "options"), [("adamw", {"num_beams": 1}), ("lm", {})])
def test_one_process_evaluates_as_two_validate(sharded: Path, run: str, options: dict[str, int]) -> None:
    """Also where one process is left without a batch."""
    metrics = RunFolder(sharded / run).read_metrics()
    assert metrics is not None
    found = evaluate_run(sharded / run, split="valid", **options)
    for name in {*metrics["best"]} & {"bleu", "chrf"}:
        assert found[name] == pytest.approx(metrics["best"][name], rel=1e-5), name
    # Validation of the language model is in bfloat16.
    for name in {*metrics["best"]} & {"perplexity", "word_perplexity"}:
        assert log(found[name]) == pytest.approx(log(metrics["best"][name]), rel=1e-3), name


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "got DeepSpeed .*; expected FSDP"),
        ({"ACCELERATE_USE_FSDP": "false", "ACCELERATE_MIXED_PRECISION": "fp16"}, "got mixed_precision fp16 in"),
        ({}, "got sharding none, but FSDP in the configuration of accelerate"),
    ],
)
def test_what_accelerate_asks_for_is_done_or_refused(
    variables: dict[str, str], message: str, corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ACCELERATE_USE_FSDP": "true", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        start(corpus, tmp_path / "run", small())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_one_process_cannot_shard(sharded: Path, corpus: Path, tmp_path: Path, small: Small) -> None:
    """It can resume the run without sharding."""
    message = "got sharding fsdp with one process, which cannot shard; .*torchrun.* --sharding none"
    with pytest.raises(UserError, match=message):
        start(corpus, tmp_path / "run", small("sharding=fsdp"))
    run = shutil.copytree(sharded / "checkpointing", tmp_path / "resumed")
    with pytest.raises(UserError, match=message):
        resume_run(run, max_steps=5, report=silent)
    assert resume_run(run, max_steps=5, sharding="none", report=silent).metrics["steps"] == 5
