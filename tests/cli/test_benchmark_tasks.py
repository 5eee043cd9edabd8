"""glue, superglue and classification from the command line: train, evaluate, compare, generate."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModelForSequenceClassification, pipeline

from cli.conftest import SMALL, Call
from tasks.benchmark_files import write_glue, write_superglue

# They are scored with the packages of the extra "glue".
pytest.importorskip("scipy.stats", reason="scipy is not installed")
pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")

SETS = [argument for override in (*SMALL, "max_position_embeddings=200") for argument in ("--set", override)]


@pytest.fixture
def both(tmp_path: Path) -> Path:
    write_glue(tmp_path / "data/glue")
    write_superglue(tmp_path / "data/superglue")
    return tmp_path / "data"


def _train(call: Call, task: str, data: Path, run: Path, *more: object) -> str:
    code, out, err = call("train", task, "--data", data, "--output", run, "--steps", 2, *SETS, *more)
    assert (code, out) == (0, ""), err
    return err


def _predictions(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(results["predictions"]).read_text(encoding="utf-8").splitlines()]


def test_some_tasks_of_glue(call: Call, both: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = _train(call, "glue", both / "glue", run, "--set", "tasks=[sst2, mnli]", "--set", "cap=5")
    assert "train: 24 examples" in said
    assert "best at step 2: validation average" in said
    options = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))["options"]
    assert (options["tasks"], options["cap"]) == (["sst2", "mnli"], 5)
    code, out, err = call("evaluate", run, "--split", "valid", "--json")
    assert code == 0, err
    results = json.loads(out)
    assert results["glue_average_signature"] == "mean of sst2, mnli; missing: cola, mrpc, stsb, qqp, qnli, rte"
    best = json.loads((run / "metrics.json").read_text(encoding="utf-8"))["best"]
    for name in ("average", "invalid", "glue_sst2_accuracy", "glue_mnli_accuracy_mismatched"):
        assert results[name] == best[name]
    lines = _predictions(results)
    assert len(lines) == results["examples"] == 6 + 6 + 7
    assert results["invalid"] == sum(line["predicted"] is None for line in lines)
    code, out, _ = call("evaluate", run, "--split", "valid", "--beams", 2)
    assert "  mean of sst2, mnli; missing: cola, mrpc" in out
    assert "SST-2 accuracy" in out
    code, out, _ = call("generate", run, "sst2 sentence: tea", "")
    assert (code, out.count("\n")) == (0, 2)
    code, _, err = call("evaluate", run)
    assert (code, "SST-2: no file test.tsv" in err) == (1, True), err


def test_one_model_for_both_suites(call: Call, both: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _train(call, "superglue", both, run, "--set", "together=true", "--set", "valid_examples=2")
    code, out, err = call("evaluate", run, "--split", "valid", "--json")
    assert code == 0, err
    results = json.loads(out)
    assert (results["glue_missing"], results["superglue_missing"]) == ("none", "none")
    assert results["average"] == pytest.approx((results["glue_average"] + results["superglue_average"]) / 2)
    # All but WNLI.
    assert len({line["task"] for line in _predictions(results)}) == 16
    assert results["examples"] == len(_predictions(results)) > 16 * 2
    assert "superglue/multirc 36" in results["fingerprint"]["tasks"]


def test_variants_are_compared(call: Call, both: Path, tmp_path: Path) -> None:
    tasks = ["--set", "tasks=[rte, cb]", "--set", "together=true", "--split", "valid", "--steps", 2]
    rows = ["--synthesizers", "vanilla,random", "--output", tmp_path / "comparison"]
    code, _, err = call("compare", "glue", "--data", both, *rows, *tasks, *SETS)
    assert code == 0, err
    table = (tmp_path / "comparison/table.md").read_text(encoding="utf-8")
    header = table.splitlines()[0]
    for column in ("valid average", "valid GLUE", "valid RTE accuracy", "valid SuperGLUE RTE accuracy", "valid CB F1"):
        assert f"| {column} |" in header
    assert "CoLA" not in header
    assert "GLUE: mean of rte; missing: cola, sst2" in table


def test_a_task_that_is_not_there_is_said(call: Call, both: Path, tmp_path: Path) -> None:
    command = ["train", "glue", "--output", tmp_path / "run", "--steps", 1, *SETS]
    for more, message in (
        (["--data", both / "superglue"], "no task of glue has files of split 'train'; expected folders"),
        (["--data", both, "--set", "tasks=sst"], "got unknown task 'sst'; expected some of: cola, sst2"),
        (["--data", both / "glue/none"], "no such folder"),
        (["--data", both, "--set", "max_position_embeddings=20"], "pass --drop-long to leave such pairs out"),
    ):
        code, out, err = call(*command, *more)
        assert (code, out) == (1, "")
        assert message in err
        assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_classification_of_texts(call: Call, tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    for split, count in (("train", 12), ("valid", 4)):
        rows = [f'{n % 2 + 1},"title {n}, new","{"tea" if n % 2 else "rain"} ""again"""' for n in range(count)]
        (data / f"{split}.csv").write_text("\n".join(["Class Index,Title,Description", *rows]), encoding="utf-8")
    said = _train(call, "classification", data, run, "--set", "classes=[Weather, Food]", "--steps", 60)
    assert "train: 12 texts" in said
    code, out, err = call("evaluate", run, "--split", "valid", "--json")
    assert code == 0, err
    results = json.loads(out)
    assert results["accuracy"] == 100.0
    assert [line["gold"] for line in _predictions(results)] == ["Weather", "Food"] * 2
    assert all(0.5 < line["score"] <= 1 for line in _predictions(results))
    assert call("generate", run, "title 3, new tea", "", "title 8, new rain")[1] == "Food\n\nWeather\n"
    assert call("generate", run, "")[:2] == (0, "\n")
    assert "accuracy 100.00" in call("evaluate", run, "--split", "valid")[1]
    code, _, err = call("generate", run, "tea " * 300)
    assert (code, "pass --on-long truncate" in err) == (1, True)
    assert call("generate", run, "tea " * 300, "--on-long", "truncate")[0] == 0
    code, _, err = call("evaluate", run, "--split", "valid", "--beams", 2)
    assert (code, "task classification generates no text" in err) == (1, True)
    # The run is a model of transformers.
    assert AutoModelForSequenceClassification.from_pretrained(run).config.id2label == {0: "Weather", 1: "Food"}
    (found,) = pipeline("text-classification", model=str(run), tokenizer=str(run))("title 3, new tea")
    assert found["label"] == "Food"


def test_classification_of_pairs_and_regression(call: Call, both: Path, tmp_path: Path) -> None:
    for task, scores, line in (
        ("mrpc", {"accuracy", "macro_f1", "f1"}, "not_equivalent"),
        ("stsb", {"pearson", "spearman"}, None),
    ):
        run = tmp_path / task
        _train(call, "classification", both, run, "--set", f"glue_task={task}")
        code, out, err = call("evaluate", run, "--split", "valid", "--json")
        assert code == 0, err
        results = json.loads(out)
        assert scores <= {*results}
        assert len(_predictions(results)) == 6
        code, out, err = call("generate", run, "the tea\tthe rain")
        assert code == 0, err
        assert out.strip() in ("equivalent", "not_equivalent") if line else abs(float(out)) < 100
    code, _, err = call("generate", tmp_path / "mrpc", "the tea", "two")
    assert (code, "input, line 1: expected a pair of texts with a tab between them" in err) == (1, True)
    rows = ["--synthesizers", "vanilla,factorized_random", "--output", tmp_path / "comparison"]
    options = ["--set", "glue_task=mrpc", "--split", "valid", "--steps", 2]
    code, _, err = call("compare", "classification", "--data", both, *rows, *options, *SETS)
    assert code == 0, err
    assert "| dev accuracy |" in (tmp_path / "comparison/table.md").read_text(encoding="utf-8")


def test_a_class_is_inspected(call: Call, both: Path, tmp_path: Path) -> None:
    _train(call, "classification", both, tmp_path / "run", "--set", "glue_task=rte")
    code, out, err = call("inspect", tmp_path / "run", "--examples", 1, "--sample", 3)
    assert code == 0, err
    assert Path(out.strip()).is_file()
