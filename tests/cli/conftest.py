"""The command line called in this process, on a small corpus."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from synthetic_attention.cli import main
from synthetic_attention.data.cldr import write_cldr_corpus

SMALL = (
    *("d_model=16", "num_heads=2", "num_layers=1", "d_ff=32", "max_position_embeddings=64", "vocab_size=300"),
    *("batch_tokens=200", "warmup_steps=5", "eval_interval=4", "log_interval=2"),
)
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output as into a file, whatever the environment of the tests asks for."""
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_cldr_corpus(folder, train=60, held_out=6)
    return folder


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `synthesizer …`: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
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
    sets = [argument for override in SMALL for argument in ("--set", override)]
    languages = ["--source", "en", "--target", "de"]
    return ["train", "translation", "--data", corpus, *languages, "--output", tmp_path / "run", "--steps", 4, *sets]


@pytest.fixture(scope="session")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, for tests that only read it."""
    run = tmp_path_factory.mktemp("trained") / "run"
    sets = [argument for override in SMALL for argument in ("--set", override)]
    languages = ["--source", "en", "--target", "de"]
    with pytest.raises(SystemExit) as exit_:
        main(["train", "translation", "--data", str(corpus), *languages, "--output", str(run), "--steps", "2", *sets])
    assert exit_.value.code == 0
    return run
