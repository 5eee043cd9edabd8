"""A run to damage, and the command line called in this process."""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from synthesizer_lab.cli import main
from training.conftest import SMALL

# Written by the planted code.
CANARY = "SYNTHESIZER_CANARY"
# YAML that would run a command.
TAG = f'!!python/object/apply:os.system ["touch ${CANARY}"]\n'
LANGUAGES = ("--source", "en", "--target", "de")


def run_command(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of `synthesizer …`, in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
    quiet = warnings.catch_warnings(action="ignore")
    with redirect_stdout(out), redirect_stderr(err), quiet, pytest.raises(SystemExit) as exit_:
        main([*arguments])
    err.flush()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, err.buffer.getvalue().decode()  # type: ignore[attr-defined]


def check_reported(code: int, err: str) -> None:
    """Success, or an error on the last line; nowhere a traceback."""
    assert "Traceback" not in err, err
    assert code in (0, 1, 2), err
    if code:
        last = err.splitlines()[-1]
        assert last.startswith("Error: "), err
        assert len(last) <= 400


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with data and a run of four steps, which every example copies; the current directory."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "data").mkdir()
    for split, count in (("train", 40), ("valid", 4)):
        for language in ("en", "de"):
            lines = "".join(f"the tea {number} of {language}\n" for number in range(count))
            (folder / "data" / f"{split}.{language}").write_text(lines, encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    os.environ[CANARY] = str(folder / CANARY)
    sets = [argument for override in SMALL for argument in ("--set", override)]
    code, err = run_command(
        *("train", "translation", "--data", "data", *LANGUAGES, "--steps", "4", "--output", "run", *sets)
    )
    assert code == 0, err
    (folder / "run").rename(folder / "intact")
    yield folder
    os.chdir(before)
