"""inspect_run: the page, the pictures and the numbers of a run."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cli.conftest import train_run
from synthesizer_lab.errors import UserError
from synthesizer_lab.inspect.inspection import inspect_run
from training.runs import silent

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ONE = ["one"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for split, count in (("train", 60), ("valid", 8)):
        lines = [" ".join(WORDS[(7 * i + j) % 10] for j in range(3 + i % 4)) for i in range(count)]
        for language in ("en", "de", "txt"):
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def _train(task: str, data: Path, output: Path, synthesizer: str, *settings: str, steps: int = 2) -> Path:
    sets = [part for setting in ("learning_rate=0.01", *settings) for part in ("--set", setting)]
    return train_run(task, data, output, "--synthesizer", synthesizer, "--seed", 3, *sets, steps=steps)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("inspected") / "run"
    return _train(
        "translation", data, output, "{encoder: random+vanilla, decoder: fixed_random}", "eval_steps=15", steps=30
    )


@pytest.fixture(scope="module")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inspect_run(run, examples=1, sample=4, output=tmp_path_factory.mktemp("out"), report=silent)


def _numbers(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "inspect.json").read_text(encoding="utf-8"))


def test_files_of_an_inspection(page: Path) -> None:
    pictures = {"text1-encoder.png", "text1-decoder.png", "text1-cross.png", "weights.png"}
    pictures |= {"R-encoder-layer1-random.png", "R-decoder-layer1-fixed-random.png", "alpha.png"}
    assert {path.name for path in page.parent.iterdir()} == {*pictures, "index.html", "inspect.json"}
    assert all((page.parent / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    text = page.read_text(encoding="utf-8")
    assert set(re.findall('src="([^"]+)"', text)) == pictures
    assert text.count("<h2") > 3
    # Nothing is loaded from elsewhere.
    assert "<script" not in text
    assert "href" not in text


def test_numbers_of_an_inspection(page: Path) -> None:
    numbers = _numbers(page.parent)
    assert (numbers["examples"], numbers["sample"]) == (4, "valid data")
    assert [(entry["stack"], entry["synthesizer"]) for entry in numbers["attention"]] == [
        ("encoder", "random+vanilla"),
        ("decoder", "fixed_random"),
        ("cross", "vanilla"),
    ]
    for entry in numbers["attention"]:
        assert len(entry["heads"]) == 2
        assert ("distance" in entry["heads"][0]) == (entry["stack"] != "cross")
        assert sum(entry["histogram"]) > 0
    (gate,) = numbers["gates"]
    assert np.allclose(np.sum(list(gate["alpha"].values()), axis=0), 1)
    # The model is that of one of the validations.
    assert [entry["step"] for entry in gate["history"]] == [15, 30]


def test_texts_without_data_and_a_second_call(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    info = yaml.safe_load((copy / "run.yaml").read_text(encoding="utf-8"))
    info["data"] = str(tmp_path / "gone")
    (copy / "run.yaml").write_text(yaml.safe_dump(info), encoding="utf-8")
    with pytest.raises(UserError, match="gone"):
        inspect_run(copy, report=silent)
    assert not (copy / "inspect").exists()
    assert inspect_run(copy, ["one", "two <b>"], report=silent) == copy / "inspect" / "index.html"
    assert _numbers(copy / "inspect")["sample"] == "the texts"
    assert "two &lt;b&gt;" in (copy / "inspect" / "index.html").read_text(encoding="utf-8")
    assert (copy / "inspect" / "text2-encoder.png").exists()
    inspect_run(copy, ONE, report=silent)
    assert "two" not in (copy / "inspect" / "index.html").read_text(encoding="utf-8")
    assert not list(copy.glob(".partial*"))


def test_a_causal_model_with_relative_positions(data: Path, tmp_path: Path) -> None:
    settings = ("num_layers=2", "position_embedding_type=relative")
    run = _train("language-modeling", data, tmp_path / "run", "[random, dynamic_conv]", *settings)
    folder = inspect_run(run, ["one two"], report=silent).parent
    pictures = {"text1-decoder.png", "weights.png", "R-decoder-layer1-random.png"}
    pictures |= {"R-decoder-layer1-relative-position-bias.png"}
    assert {path.name for path in folder.iterdir()} == {*pictures, "index.html", "inspect.json"}
    numbers = _numbers(folder)
    found = [(entry["stack"], entry["synthesizer"]) for entry in numbers["attention"]]
    assert found == [("decoder", "random"), ("decoder", "dynamic_conv")]
    _, bias = numbers["random"]
    assert (bias["stack"], bias["function"]) == ("decoder", "relative_position_bias")


def test_wrong_splits_and_folders(run: Path, data: Path, tmp_path: Path) -> None:
    before = sorted(run.rglob("*"))
    with pytest.raises(UserError, match="tset"):
        inspect_run(run, split="tset", report=silent)
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for output in (tmp_path / "file", tmp_path):
        with pytest.raises(UserError, match="--output"):
            inspect_run(run, ONE, output=output, report=silent)
    with pytest.raises(UserError, match="synthesizer train"):
        inspect_run(data, report=silent)
    assert sorted(run.rglob("*")) == before
