"""The other tasks from the command line: train, evaluate, compare, generate, inspect."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification, pipeline

from cli.conftest import SETS, Call, check_error, succeed
from documents import blocks

# The extra "glue".
pytest.importorskip("scipy.stats", reason="scipy is not installed")
pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")

LONGER = (*SETS, "--set", "max_position_embeddings=200")


def train(call: Call, task: str, data: Path, run: Path, *more: object) -> None:
    code, out, err = call("train", task, "--data", data, "--output", run, "--steps", 2, *LONGER, *more)
    assert (code, out) == (0, ""), err


def evaluate(call: Call, run: Path) -> dict[str, Any]:
    """The scores of the validation data, and its predictions."""
    results = json.loads(succeed(call("evaluate", run, "--split", "valid", "--json"))[0])
    lines = Path(results["predictions"]).read_text(encoding="utf-8").splitlines()
    return {**results, "lines": [json.loads(line) for line in lines]}


def test_classification_of_texts(call: Call, tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    for split, count in (("train", 12), ("valid", 4)):
        rows = [f'{n % 2 + 1},"title {n}, new","{"tea" if n % 2 else "rain"} ""again"""' for n in range(count)]
        (data / f"{split}.csv").write_text("\n".join(["Class Index,Title,Description", *rows]), encoding="utf-8")
    train(call, "classification", data, run, "--set", "classes=[Weather, Food]", "--steps", 60)
    results = evaluate(call, run)
    assert results["accuracy"] == 100.0
    assert [line["gold"] for line in results["lines"]] == ["Weather", "Food"] * 2
    assert all(0.5 < line["score"] <= 1 for line in results["lines"])
    assert call("generate", run, "title 3, new tea", "", "title 8, new rain")[1] == "Food\n\nWeather\n"
    check_error(call("generate", run, "tea " * 300), "--on-long truncate")
    assert call("generate", run, "tea " * 300, "--on-long", "truncate")[0] == 0
    check_error(call("evaluate", run, "--split", "valid", "--num-beams", 2), "classification")
    # The run is a model of transformers.
    assert AutoModelForSequenceClassification.from_pretrained(run).config.id2label == {0: "Weather", 1: "Food"}
    (found,) = pipeline("text-classification", model=str(run))("title 3, new tea")
    assert found["label"] == "Food"
    # A new file, not of all classes: the training data tells which these are, and that -1 is hidden.
    (tmp_path / "new.csv").write_text("Class Index,Title,Description\n2,,tea\n-1,,rain\n", encoding="utf-8")
    assert '"examples": 1,' in call("evaluate", run, "--data", tmp_path / "new.csv", "--json")[1]
    (path,) = (run / "evaluation").glob("new.*.jsonl")
    assert [json.loads(line)["gold"] for line in path.read_text(encoding="utf-8").splitlines()] == ["Food", None]
    # Data without training data, and not of all classes.
    (data / "train.csv").unlink()
    (data / "valid.csv").write_text("Class Index,Title,Description\n" + "Food,tea,again\n" * 4, encoding="utf-8")
    assert call("inspect", run, "--sample", 4)[0] == 0


def test_classification_of_one_file(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, new, run = tmp_path / "reviews.csv", tmp_path / "new.csv", tmp_path / "run"
    lines = [f"{'good' if n % 2 else 'bad'} {n},{n % 2}" for n in range(60)]
    file.write_text("\n".join(["review,label", *lines]), encoding="utf-8")
    new.write_text("review\ngood 3\nbad 7\n", encoding="utf-8")
    _, err = succeed(call("train", "classification", "--data", file, "--output", run, "--steps", 2, *LONGER))
    assert "valid: 10% of the training data, held out (--set held_out=…)\n" in err
    assert 0 < (held_out := evaluate(call, run)["examples"]) < 20
    # Nor is a copy of the training data scored as new data.
    copied = file.rename(tmp_path / "copied.csv")
    assert f'"examples": {held_out},' in call("evaluate", run, "--data", copied, "--split", "valid", "--json")[1]
    code, out, _ = call("evaluate", run, "--data", new)
    assert (code, out.splitlines()[0]) == (0, "new: no texts with a label, no scores")
    (path,) = (run / "evaluation").glob("new.*.jsonl")
    assert [json.loads(line)["gold"] for line in path.read_text(encoding="utf-8").splitlines()] == [None, None]
    monkeypatch.chdir(run)
    exec(dict(blocks(run / "README.md"))["python"], {})
