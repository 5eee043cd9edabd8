"""synthesizer compare, as it is called."""

from pathlib import Path

import pytest

from cli.conftest import LANGUAGES, SETS, Call, check_error
from synthesizer_lab.cli.options import whole_numbers
from synthesizer_lab.errors import UserError


@pytest.fixture
def compare(corpus: Path, tmp_path: Path) -> list[object]:
    """Arguments of a comparison of two rows that works, into tmp_path/out."""
    rows = ["--synthesizers", "random@num_heads=1,random@num_heads=2", "--output", tmp_path / "out"]
    return ["compare", "translation", "--data", corpus, *LANGUAGES, "--num-beams", 1, *rows, "--steps", 2, *SETS]


def test_a_failed_run_is_an_error(call: Call, compare: list[object]) -> None:
    compare[compare.index("--synthesizers") + 1] = "vanilla@learning_rate=4e9,vanilla"
    code, text, err = call(*compare)
    assert code == 1
    assert "vanilla" in text
    assert err.splitlines()[-1].startswith("Error: 1 of 2 runs failed (vanilla@learning_rate=4e9, seed 0: ")


@pytest.mark.parametrize(
    ("extra", "fact", "code"),
    [
        (["--synthesizers", "randm"], "'randm'", 1),
        (["--truncate", "--on-long", "drop"], "--on-long drop", 2),
        (["--seeds", "1,2,1"], "expected each seed once", 1),
        (["--output", "/dev/null"], "/dev/null", 1),
    ],
)
def test_wrong_options(
    call: Call, compare: list[object], tmp_path: Path, extra: list[str], fact: str, code: int
) -> None:
    check_error(call(*compare, *extra), fact, code=code)
    assert not (tmp_path / "out").exists()


def test_seeds() -> None:
    assert whole_numbers("--seeds", "0, 2,1", least=0) == [0, 2, 1]
    for text in ("", "0,", "zero", "1.5", "-1"):
        with pytest.raises(UserError, match=r"got --seeds .* from 0 on"):
            whole_numbers("--seeds", text, least=0)
