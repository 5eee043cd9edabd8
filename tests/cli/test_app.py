"""The command as a whole: help, versions, wrong usage, interrupts."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import synthetic_attention
from cli.conftest import Call, check_error, succeed
from synthesizer_lab.cli.app import app

# Seconds to import, each of the first three.
HEAVY = {"torch", "transformers", "datasets", "tokenizers", "numpy", "rich", "sacrebleu"}


@pytest.mark.parametrize("form", ["script", "module"])
def test_help_imports_nothing_heavy(form: str, tmp_path: Path) -> None:
    script = tmp_path / "synthesizer"
    script.write_text("from synthesizer_lab.cli import main\nmain()\n")
    command = [str(script)] if form == "script" else ["-m", "synthesizer_lab"]
    # Python writes the modules that it imports to standard error.
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command, "--help"], capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & HEAVY
    # Summaries are shown whole.
    assert "benchmark" in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]


def _commands(group: Any = None, names: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The command line itself, every command, and the commands of those that have some."""
    group = get_command(app) if group is None else group
    below = getattr(group, "commands", {})
    return [names, *(found for name in below for found in _commands(below[name], (*names, name)))]


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_every_command_has_help(call: Call, command: tuple[str, ...]) -> None:
    out, _ = succeed(call(*command, "--help"))
    assert "Usage:" in out
    # click cuts the summaries of long commands.
    assert not [line for line in out.splitlines()[1:] if line.endswith("...")]
    # Technical limits.
    assert "<=" not in out
    if any(each[:-1] == command for each in _commands() if each):
        code, shown, err = call(*command)
        assert (code, shown, err.strip()) == (2, "", out.strip())
    else:
        assert f"\nExample:\n  synthesizer {' '.join(command)} " in out


def test_version_and_wrong_usage(call: Call) -> None:
    assert call("--version")[:2] == (0, f"{synthetic_attention.__version__}\n")
    check_error(call("trane"), "trane", code=2)
    check_error(call("train"), "TASK", code=2)
    check_error(call("train", "summarization", "--output", "run"), "--data", code=2)
    check_error(call("train", "translation", "--data", "data"), "--output", code=2)
    assert "the example data of translation\n" in call("train", "translation", "--dry-run", "--set", "x=1")[2]
    check_error(call("train", "translate", "--output", "run"), "'translate'", "translation")


def test_errors_are_one_line_of_400_characters(call: Call, tmp_path: Path) -> None:
    code, _, err = call("generate", f"{tmp_path}/\x1b[31m{'x' * 200}\n/{'y' * 200}", "text")
    assert (code, err.count("\n"), len(err.rstrip("\n"))) == (1, 1, 400)
    assert err.startswith(f"Error: {tmp_path}/\\x1b[31mxx")
    assert err.endswith("expected a folder made by `synthesizer train` or `convert --task`\n")


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(trained: Path) -> None:
    command = [sys.executable, "-m", "synthesizer_lab", "generate", str(trained), "one"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_settings(call: Call) -> None:
    out, _ = succeed(call("settings"))
    assert all(key in out for key in ("learning_rate", "d_model", "random.std", "mixture.gate"))
    out, _ = succeed(call("settings", "random", "d_model"))
    assert all(key in out for key in ("0.003", "d_model"))
    assert "learning_rate" not in out
    check_error(call("settings", "learning_rat"), "'learning_rate'")
    check_error(call("settings", "--preset", "huge"), "'huge'", "t5-tiny")
