"""The command line called in this process, on a small corpus."""

from collections.abc import Callable
from pathlib import Path

import pytest

from synthesizer_lab.cli import main
from training.conftest import SMALL, _one_thread, corpus
from training.runs import snapshot

__all__ = ["SMALL", "_one_thread", "corpus", "snapshot"]

SETS = [argument for override in SMALL for argument in ("--set", override)]
LANGUAGES = ("--source", "en", "--target", "de")
Result = tuple[int, str, str]
Call = Callable[..., Result]


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output as into a file, in any environment."""
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `synthesizer …`: exit code, standard output, standard error."""

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, output.out, output.err

    return run


@pytest.fixture
def train(corpus: Path, tmp_path: Path) -> list[object]:
    """Arguments of a training command that works, into tmp_path/run."""
    return ["train", "translation", "--data", corpus, *LANGUAGES, "--output", tmp_path / "run", "--steps", 4, *SETS]


def train_run(task: str, data: Path, run: Path, *options: object, steps: int = 2) -> Path:
    """Train a small model with the command; returns the folder of the run."""
    languages = LANGUAGES if task == "translation" else ()
    command = ["train", task, "--data", data, *languages, "--output", run, "--steps", steps, *SETS, *options]
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in command])
    assert exit_.value.code == 0
    return run


@pytest.fixture(scope="session")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, for tests that only read it."""
    return train_run("translation", corpus, tmp_path_factory.mktemp("trained") / "run")


def succeed(result: Result) -> tuple[str, str]:
    """Standard output and standard error of a command that succeeded."""
    code, out, err = result
    assert code == 0, err
    return out, err


def check_error(result: Result, *facts: object, code: int = 1) -> None:
    """Check that a command failed with one line on standard error (after lines of progress) that names the facts."""
    actual, out, err = result
    assert (actual, out) == (code, ""), err
    *progress, last = err.splitlines()
    assert last.startswith("Error: "), err
    assert not any(line.startswith(("Error", "Traceback")) for line in progress), err
    for fact in facts:
        assert str(fact) in last
