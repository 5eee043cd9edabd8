"""synthesizer train: what it writes, resumes and refuses. An error is one line, and nothing is written or lost."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from cli.conftest import SETS, Call, check_error, snapshot, succeed


def read_run(run: Path) -> dict:
    return yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))


def test_the_settings_of_a_run(call: Call, train: list[object], tmp_path: Path) -> None:
    command = (*train, "--synthesizer", "dense+random", "--seed", 5, "--set", "random.std=0.1", "--set", "minutes=60")
    code, out, err = call(*command)
    assert (code, out) == (0, ""), err
    assert "tokens/s" in err
    assert str(tmp_path / "run") in err.splitlines()[-1]
    settings = read_run(tmp_path / "run")["settings"]
    assert (settings["synthesizer"], settings["training"]["seed"]) == ("dense+random", 5)
    assert settings["synthesizer_options"] == {"random": {"std": 0.1}}
    # A new limit by a flag, and the other by --set again.
    assert call(*command, "--resume", "--steps", 5)[0] == 0
    training = read_run(tmp_path / "run")["settings"]["training"]
    assert (training["max_steps"], training["minutes"]) == (5, 60)


def test_resume_needs_only_the_output(call: Call, train: list[object], tmp_path: Path) -> None:
    run = tmp_path / "run"
    resume = ("train", "translation", "--output", run, "--resume")
    start = (*train, "--resume-if-exists", "--batches-per-update", 2)
    assert call(*start)[0] == 0
    info = read_run(run)
    assert (info["processes"], info["settings"]["training"]["gradient_accumulation_steps"]) == (1, 2)
    check_error(call(*resume), "4 steps")
    check_error(call(*start, "--overwrite"), "--resume-if-exists and --overwrite", code=2)
    check_error(call(*start, "--set", "gradient_accumulation_steps=2"), "--batches-per-update and --set", code=2)
    # A launcher may start the command of a complete run again.
    assert "complete" in succeed(call(*start))[1]
    succeed(call(*resume, "--steps", 6))
    assert json.loads((run / "metrics.json").read_text(encoding="utf-8"))["steps"] == 6
    # The whole command with --resume works too, as long as it agrees with the run.
    assert call(*train, "--resume", "--steps", 8)[0] == 0
    check_error(call(*train, "--resume", "--steps", 9, "--set", "d_ff=64"), "d_ff=64")
    assert len(read_run(run)["commands"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_a_checkpoint(call: Call, train: list[object], tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "synthesizer_lab", *map(str, train), "--steps", "100000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not (run / "log.jsonl").is_file() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            process.send_signal(number)
            err = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    assert f"synthesizer train translation --output {run} --resume" in err
    (checkpoint,) = (run / "checkpoints").iterdir()
    step = int(checkpoint.name.split("-")[1])
    assert step > 0
    assert call("generate", run, "one")[0] == 0
    _, err = succeed(call("train", "translation", "--output", run, "--resume", "--steps", step + 2))
    assert f"checkpoint-{step}" in err


def test_malformed_lines_are_errors_or_counted(call: Call, tmp_path: Path) -> None:
    articles = tmp_path / "data"
    articles.mkdir()
    for split, number, more in (("train", 30, "\nno json\n"), ("valid", 10, "")):
        rows = [json.dumps({"article": f"the {line} is here", "highlights": f"the {line}"}) for line in range(number)]
        (articles / f"{split}.jsonl").write_text("\n".join(rows) + more, encoding="utf-8")
    command = ("train", "summarization", "--data", articles, "--output", tmp_path / "run", "--steps", 2, *SETS)
    check_error(call(*command), "train.jsonl", "line 31")
    succeed(call(*command, "--skip-bad-lines"))
    assert json.loads((tmp_path / "run/metrics.json").read_text(encoding="utf-8"))["train_lines_skipped"] == 1


@pytest.mark.parametrize(
    ("extra", "fact", "code"),
    [
        (["--synthesizer", "randm"], "'randm'", 1),
        (["--device", "tpu0"], "'tpu0'", 1),
        (["--resume", "--dry-run"], "--dry-run", 2),
        (["--truncate", "--on-long", "drop"], "--on-long drop", 2),
        (["--set", "max_position_embeddings=3"], "--on-long truncate, or in training --on-long drop", 1),
        (["--set", "learning_rat=1"], "learning_rate", 1),
        (["--resume"], "run", 1),
    ],
)
def test_wrong_options(call: Call, train: list[object], tmp_path: Path, extra: list[str], fact: str, code: int) -> None:
    check_error(call(*train, *extra), fact, code=code)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("extra", "fact"), [(["--set", "max_position_embeddings=1000000"], "memory"), (["--data", "nowhere"], "nowhere")]
)
def test_a_failed_overwrite_keeps_the_run(
    call: Call, train: list[object], trained: Path, tmp_path: Path, extra: list[str], fact: str
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    before = snapshot(run)
    check_error(call(*train, "--overwrite", *extra), fact)
    assert snapshot(run) == before
    assert [*tmp_path.iterdir()] == [run]
