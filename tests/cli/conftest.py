"""The command line called in this process, on a small corpus."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from synthetic_attention.cli import main
from synthetic_attention.data.phrases import write_phrases

SMALL = (
    *("d_model=16", "num_heads=2", "num_layers=1", "d_ff=32", "max_position_embeddings=64", "vocab_size=300"),
    *("batch_tokens=200", "warmup_steps=5", "eval_steps=4", "logging_steps=2"),
)
SETS = [argument for override in SMALL for argument in ("--set", override)]
LANGUAGES = ("--source", "en", "--target", "de")
Result = tuple[int, str, str]
Call = Callable[..., Result]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output as into a file, in any environment."""
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_phrases(folder, train=60, held_out=6)
    return folder


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


@pytest.fixture(scope="session")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, for tests that only read it."""
    run = tmp_path_factory.mktemp("trained") / "run"
    command = ["train", "translation", "--data", corpus, *LANGUAGES, "--output", run, "--steps", 2, *SETS]
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in command])
    assert exit_.value.code == 0
    return run


def check_error(result: Result, *facts: object, code: int = 1) -> None:
    """Check that a command failed with one line on standard error (after lines of progress) that names the facts."""
    actual, out, err = result
    assert (actual, out) == (code, ""), err
    *progress, last = err.splitlines()
    assert last.startswith("Error: "), err
    assert not any(line.startswith(("Error", "Traceback")) for line in progress), err
    for fact in facts:
        assert str(fact) in last


def snapshot(folder: Path) -> dict[Path, bytes]:
    """The content of all files in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
