"""synthesizer inspect: from a run to pictures."""

import json
from pathlib import Path

import pytest

from cli.conftest import Call, check_error


def test_pictures_page_and_numbers(call: Call, trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "out"
    code, out, err = call("inspect", trained, "one plus two", "--sample", 3, "--output", output)
    assert code == 0, err
    assert out == f"{output / 'index.html'}\n"
    numbers = json.loads((output / "inspect.json").read_text(encoding="utf-8"))
    pictures = [name for name in numbers["files"] if name.endswith(".png")]
    assert pictures
    assert all((output / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_what_attention_depends_on_is_measured_on_data(call: Call, trained: Path, tmp_path: Path) -> None:
    code, out, err = call("inspect", trained, "--sample", 5, "--output", tmp_path / "out")
    assert code == 0, err
    numbers = json.loads((tmp_path / "out/inspect.json").read_text(encoding="utf-8"))
    places = [(entry["stack"], entry["layer"]) for entry in numbers["attention"] if entry["stack"] != "cross"]
    assert [(entry["stack"], entry["layer"]) for entry in numbers["explained"]] == places
    assert {*numbers["explained"][0]["heads"][0]} == {"explained_by_random", "explained_by_dense"}
    assert numbers["loss"] > 0
    page = Path(out.strip()).read_text(encoding="utf-8")
    assert "What attention depends on</h2>" in page
    assert "Without a function</h2>" in page
    assert {(entry["stack"], entry["layer"]) for entry in numbers["removed"]} > {*places}


@pytest.mark.parametrize(
    ("arguments", "fact", "code"),
    [
        (["--split", "tset"], "tset", 1),
        (["--sample", 0], "--sample", 2),
        (["--examples", 0], "--examples", 2),
    ],
)
def test_wrong_options(call: Call, trained: Path, arguments: list[object], fact: str, code: int) -> None:
    check_error(call("inspect", trained, *arguments), fact, code=code)
    assert not (trained / "inspect").exists()
