"""Help answers at once, so nothing heavy may be imported for it."""

import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from synthetic_attention.cli import app
from synthetic_attention.training.settings import known_presets

HEAVY = ("torch", "transformers", "tokenizers", "numpy", "yaml", "rich", "sacrebleu")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, synthetic_attention.cli as cli\n"
        "try: cli.main(['--help'])\n"
        f"except SystemExit: print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "Commands:" in done.stdout


def _commands(group: Any = None, names: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The command line itself, every command, and the commands of those that have some."""
    group = get_command(app) if group is None else group
    # Asked for by name: typer may bring its own copy of click.
    below = getattr(group, "commands", {})
    return [names, *(found for name in below for found in _commands(below[name], (*names, name)))]


def test_the_commands_there_are() -> None:
    expected = {(), ("train",), ("evaluate",), ("generate",), ("compare",), ("inspect",), ("benchmark",)}
    assert expected < set(_commands())
    assert len([command for command in _commands() if command[:1] == ("benchmark",)]) > 1


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_every_command_has_help(call, command: tuple[str, ...]) -> None:
    code, out, _ = call(*command, "--help")
    assert code == 0
    assert "Usage:" in out


@pytest.mark.parametrize("command", [(), ("benchmark",)])
def test_without_arguments_there_is_help(call, command: tuple[str, ...]) -> None:
    code, out, err = call(*command)
    assert (code, out) == (2, "")
    # As --help has it: many lines, and no error.
    assert err.strip() == call(*command, "--help")[1].strip()


@pytest.mark.parametrize("command", ["train", "compare"])
def test_presets_are_named(call, command: str) -> None:
    out = " ".join(call(command, "--help")[1].split())
    assert all(preset in out for preset in known_presets())


def test_the_version_is_that_of_the_package(call) -> None:
    import synthetic_attention

    assert call("--version")[:2] == (0, f"{synthetic_attention.__version__}\n")
