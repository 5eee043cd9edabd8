"""Runs that were stopped or killed, and go on as if they had not been."""

import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from synthesizer_lab.tasks import UserError
from synthesizer_lab.training import trainer
from synthesizer_lab.training.run import resume_run
from synthesizer_lab.training.run_folder import RunFolder
from training.runs import (
    Kill,
    KilledError,
    Small,
    assert_same_runs,
    die,
    generate_lines,
    logged,
    on_call,
    silent,
    start,
    start_and_kill,
    weights,
)


@pytest.mark.parametrize("killed_at", [3, 7])
def test_killed_and_resumed_equals_straight(
    corpus: Path, tmp_path: Path, small: Small, straight: Path, killed_at: int
) -> None:
    start_and_kill(corpus, tmp_path / "killed", small(), killed_at)
    resume_run(tmp_path / "killed", report=silent)
    assert_same_runs(straight, tmp_path / "killed")


@pytest.mark.parametrize(
    ("owner", "name", "number", "start_from"),
    [
        (trainer, "evaluate_loss", 1, "the start"),
        (RunFolder, "write_json", 2, "checkpoint-4"),
        (torch, "save", 6, "checkpoint-4"),
        (trainer, "commit_checkpoint", 2, "checkpoint-4"),
    ],
)
def test_killed_in_validation_or_saving_and_resumed_equals_straight(
    corpus: Path, tmp_path: Path, small: Small, straight: Path, owner: Any, name: str, number: int, start_from: str
) -> None:
    with on_call(owner, name, number, die), pytest.raises(KilledError):
        start(corpus, tmp_path / "killed", small())
    lines: list[str] = []
    metrics = resume_run(tmp_path / "killed", report=lines.append).metrics
    assert any(f"from {start_from}" in line for line in lines)
    assert metrics["finished"]
    assert_same_runs(straight, tmp_path / "killed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_a_checkpoint_to_go_on_from(
    corpus: Path, tmp_path: Path, small: Small, straight: Path, number: int
) -> None:
    run = tmp_path / "run"
    # Where `nohup` starts the tests, this one is ignored.
    before = signal.signal(number, signal.SIG_DFL) if number == signal.SIGHUP else signal.getsignal(number)
    outcome = start(corpus, run, small(), callbacks=[Kill(3, lambda: os.kill(os.getpid(), number))])
    assert signal.getsignal(number) is (signal.SIG_DFL if number == signal.SIGHUP else before)
    signal.signal(number, before)
    assert (outcome.signal, outcome.metrics["finished"]) == (number, False)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["checkpoint-3"]
    # Not validated yet, but usable.
    assert generate_lines(run, ["one", ""], num_beams=1)[0][1] == ""
    resume_run(run, report=silent)
    for name, value in weights(straight).items():
        assert torch.equal(value, weights(run)[name]), name


def test_a_second_signal_interrupts_at_once(corpus: Path, tmp_path: Path, small: Small) -> None:
    def twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        start(corpus, tmp_path / "run", small(), callbacks=[Kill(6, twice)])
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["checkpoint-4"]


def test_the_batches_of_an_update_change_only_on_demand(corpus: Path, tmp_path: Path, small: Small) -> None:
    run = tmp_path / "run"
    start(corpus, run, small("max_steps=3"))
    # A user's copy is no checkpoint, and stays.
    copy = shutil.copytree(run / "checkpoints/checkpoint-3", run / "checkpoints/checkpoint-3.bak2")
    with pytest.raises(
        UserError, match=r"2 batches per update cannot be shared by 3 processes; .* --batches-per-update"
    ):
        small().with_batches_per_update(2, 3)
    resume_run(run, batches_per_update=3, max_steps=5, report=silent)
    resume_run(run, max_steps=6, report=silent)
    assert (copy / "model.safetensors").exists()
    assert RunFolder(run).read_settings(RunFolder(run).read_info()).training.gradient_accumulation_steps == 3
    # Three updates of one batch and three of three: the first 12 batches of the stream.
    start(corpus, tmp_path / "single", small("max_steps=12"))
    assert logged(run, "tokens")[-1] == logged(tmp_path / "single", "tokens")[-1]


def test_resuming_with_other_settings_or_data_is_refused(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, other, logged_elsewhere = tmp_path / "run", tmp_path / "other", small("report_to=lion")
    with pytest.raises(UserError, match="report_to=lion, which is unknown or not installed"):
        start(corpus, run, logged_elsewhere)
    start(corpus, run, small("max_steps=1"))
    with pytest.raises(UserError, match=r"got seed 4, but .* was started with 3"):
        resume_run(run, expected={"seed": 4}, max_steps=2)
    with pytest.raises(UserError, match=r"got --set a=1, but .* was started with \w+=\w+ "):
        resume_run(run, expected={"overrides": ["a=1"]}, max_steps=2)
    path = run / "checkpoints/checkpoint-1/optimizer.pt"
    state = torch.load(path, weights_only=True)
    state["state"][0]["exp_avg"] = torch.zeros(3)
    torch.save(state, path)
    with pytest.raises(UserError, match=r"exp_avg of parameter 0 has shape \[3\]; expected"):
        resume_run(run, max_steps=2, report=silent)
    other.mkdir()
    for path in corpus.iterdir():
        (other / path.name).write_text(path.read_text(encoding="utf-8").replace("The", "Those"), encoding="utf-8")
    with pytest.raises(UserError, match="the train data is not the data"):
        resume_run(run, data=other, max_steps=2)
    info = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    for group, name in ((info["options"], "packed"), (info["settings"]["training"], "streaming")):
        group[name] = True
        (run / "run.yaml").write_text(yaml.safe_dump(info), encoding="utf-8")
        with pytest.raises(UserError, match=f"trained with {name}, which is gone; it can be evaluated"):
            resume_run(run, max_steps=2)
        del group[name]


def test_resuming_notes_versions_and_data(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    monkeypatch.setattr(sys, "argv", ["/bin/synthesizer", "train", "--synthesizer", "{encoder: dense}"])
    (tmp_path / "data").mkdir()
    for path in corpus.iterdir():
        (tmp_path / "data" / path.name).write_bytes(path.read_bytes())
    start(tmp_path / "data", run, small("max_steps=1"))
    (tmp_path / "data").rename(moved)
    with pytest.raises(UserError, match="does not exist; pass --data"):
        resume_run(run, max_steps=2)
    monkeypatch.setattr("synthesizer_lab.training.run.__version__", "9.9")
    resume_run(run, max_steps=2, data=moved, report=silent)
    info = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    assert info["data"] == str(moved)
    assert info["resumed_with"] == [info["versions"] | {"synthetic-attention": "9.9"}]
    assert shlex.split(info["commands"][1]) == ["synthesizer", "train", "--synthesizer", "{encoder: dense}"]
