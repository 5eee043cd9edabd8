"""Help answers at once, so nothing heavy may be imported for it."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("command", [[], ["train"], ["evaluate"], ["generate"]])
def test_every_command_has_help(call, command: list[str]) -> None:
    code, out, _ = call(*command, "--help")
    assert code == 0
    assert "Usage:" in out


def test_the_version_is_that_of_the_package(call) -> None:
    import synthetic_attention

    assert call("--version")[:2] == (0, f"{synthetic_attention.__version__}\n")
