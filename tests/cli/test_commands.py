"""train, evaluate, generate: from text files to text."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from synthetic_attention.cli import generate
from synthetic_attention.tasks.translation import Translation


def _stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_without_data_translation_is_trained_on_the_corpus_that_comes_with_it(
    call, train: list[object], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translation, "default_data", lambda: corpus)
    start = train.index("--data")
    assert train[start + 2 : start + 6] == ["--source", "en", "--target", "de"]
    code, _, err = call(*train[:start], *train[start + 6 :])
    assert code == 0, err
    info = yaml.safe_load((tmp_path / "run/run.yaml").read_text(encoding="utf-8"))
    assert info["data"] == str(corpus)
    assert (info["options"]["source"], info["options"]["target"]) == ("en", "de")
    assert call("evaluate", tmp_path / "run", "--beams", 1)[0] == 0

    reverse = ["--source", "de", "--target", "en", "--overwrite"]
    assert call(*train[:start], *train[start + 6 :], *reverse)[0] == 0
    info = yaml.safe_load((tmp_path / "run/run.yaml").read_text(encoding="utf-8"))
    assert (info["options"]["source"], info["options"]["target"]) == ("de", "en")


def test_train_then_evaluate_then_generate(
    call, train: list[object], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    code, out, err = call(*train, "--synthesizer", "dense+random", "--seed", 5, "--set", "random.std=0.1")
    assert (code, out) == (0, ""), err
    assert "tokens/s" in err
    assert "left" in err
    assert "the best model is in" in err
    settings = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))["settings"]
    assert (settings["synthesizer"], settings["seed"]) == ("dense+random", 5)
    assert settings["synthesizer_options"] == {"random": {"std": 0.1}}

    code, out, _ = call("evaluate", run, "--data", corpus, "--split", "test", "--beams", 2, "--json")
    results = json.loads(out)
    assert code == 0
    assert out.count("\n") == 1
    assert results["examples"] == 6
    assert {"bleu", "chrf", "bleu_signature", "chrf_signature"} <= set(results)

    code, out, _ = call("evaluate", run, "--beams", 1)
    assert code == 0
    assert "BLEU" in out
    assert "chrF" in out

    _, one, _ = call("generate", run, "one plus two", "", "three")
    assert len(one.split("\n")) == 4
    assert one.split("\n")[1] == ""
    _stdin(monkeypatch, b"one plus two\n\nthree")
    assert call("generate", run, "-")[1] == one
    _stdin(monkeypatch, b"one plus two\n\nthree\n")
    assert call("generate", run)[1] == one
    _stdin(monkeypatch, b"\xef\xbb\xbfone plus two\r\n\r\nthree\r\n")
    assert call("generate", run)[1] == one
    assert call("generate", run, "one plus two\r\n\r\nthree")[1] == one
    _stdin(monkeypatch, b"")
    assert call("generate", run, "-") == (0, "", "")


def test_standard_input_is_translated_as_it_comes(call, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_CHUNK", 2)
    _stdin(monkeypatch, b"one\ntwo\nthree\n" + b"one " * 99)
    code, out, err = call("generate", trained)
    assert (code, out.count("\n")) == (1, 2)
    assert "input: 1 of 2 lines are longer than the maximum of 64 tokens (the first is line 4" in err

    def shout(
        self: Translation, model: object, tokenizer: object, lines: list[str], *options: object, **where: object
    ) -> tuple[list[str], int]:
        return [line.upper() for line in lines], len(lines)

    monkeypatch.setattr(Translation, "generate", shout)
    _stdin(monkeypatch, b"one\ntwo\n\nfour\nfive")
    assert call("generate", trained) == (0, "ONE\nTWO\n\nFOUR\nFIVE\n", "5 lines truncated\n")
    _stdin(monkeypatch, b"one\ntwo\nthr\xff\n")
    code, out, err = call("generate", trained)
    assert (code, out) == (1, "ONE\nTWO\n")
    assert "standard input, line 3: byte 0xff" in err


def test_an_interrupt_is_said(call, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Translation, "generate", interrupt)
    for command in (["evaluate", trained], ["generate", trained, "one"]):
        assert call(*command) == (130, "", "Error: interrupted\n")


def test_resume_needs_no_more_than_the_output(call, train: list[object], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call(*train)[0] == 0
    code, _, err = call("train", "translation", "--output", run, "--resume")
    assert (code, "the run is complete, with 4 steps" in err) == (1, True)
    code, _, err = call("train", "translation", "--output", run, "--resume", "--steps", 6)
    assert code == 0, err
    assert json.loads((run / "metrics.json").read_text(encoding="utf-8"))["steps"] == 6
    # The whole command with --resume is as good, while it says the same.
    assert call(*train, "--resume", "--steps", 8)[0] == 0
    code, _, err = call(*train, "--resume", "--steps", 9, "--set", "d_ff=64")
    assert code == 1
    assert "leave it out to resume" in err
    assert len(yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))["commands"]) == 3


def _start(train: list[object]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "synthetic_attention.cli", *map(str, train), "--steps", "100000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_a_checkpoint(
    call, train: list[object], tmp_path: Path, number: signal.Signals
) -> None:
    run, process = tmp_path / "run", _start(train)
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
    code, _, err = call("train", "translation", "--output", run, "--resume", "--steps", step + 2)
    assert code == 0
    assert f"from checkpoint-{step}" in err


def test_lines_over_the_maximum_are_cut_only_if_asked(call, trained: Path, tmp_path: Path, corpus: Path) -> None:
    code, out, err = call("generate", trained, "one " * 99, "two")
    assert (code, out) == (1, "")
    assert "1 of 2 lines" in err
    code, out, err = call("generate", trained, "one " * 99, "two", "--truncate")
    assert (code, out.count("\n")) == (0, 2)
    assert "1 lines truncated" in err
    for language in ("en", "de"):
        text = (corpus / f"test.{language}").read_text(encoding="utf-8")
        (tmp_path / f"test.{language}").write_text(text + "one " * 99 + "\n", encoding="utf-8")
    code, out, err = call("evaluate", trained, "--data", tmp_path, "--json")
    assert (code, out) == (1, "")
    assert "test.en: 1 of 7 lines are longer than the maximum of 64 tokens" in err
    code, out, _ = call("evaluate", trained, "--data", tmp_path, "--json", "--truncate")
    assert code == 0
    assert json.loads(out)["truncated"] == 1


def test_a_reader_that_goes_away_is_no_error_to_talk_about(trained: Path) -> None:
    command = [sys.executable, "-m", "synthetic_attention.cli", "generate", str(trained), "one"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 1


def test_a_run_can_be_moved(call, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "moved")
    assert call("generate", tmp_path / "moved", "one")[1] == call("generate", trained, "one")[1]
