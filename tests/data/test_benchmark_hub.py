"""GLUE, SuperGLUE and classification from the hub, whose library is played by rows in its layout."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synthetic_attention.data.superglue import read_superglue
from synthetic_attention.tasks.classification import Classification
from synthetic_attention.tasks.glue import Glue
from synthetic_attention.tasks.superglue import SuperGlue
from synthetic_attention.tasks.text_to_text import BENCHMARKS
from tasks.benchmark_files import superglue_row, write_superglue

Asked = list[tuple[str, str | None, str, str | None]]


def _glue_row(task: str, number: int, label: float) -> dict[str, Any]:
    texts = {name: f"{name} {number} " for name in BENCHMARKS["glue"][task].texts}
    return {**texts, "label": label, "idx": number}


def _superglue_rows(task: str) -> list[dict[str, Any]]:
    """The rows of the official file of `superglue_row`, as the hub has them."""
    rows = []
    for number in range(5, 7):
        row = superglue_row(task, number)
        labels = BENCHMARKS["superglue"][task].labels
        if task == "multirc":
            for question in row["passage"]["questions"]:
                for answer in question["answers"]:
                    place = {"paragraph": number, "question": question["idx"], "answer": answer["idx"]}
                    texts = {"paragraph": row["passage"]["text"], "question": question["question"]}
                    rows.append({**texts, "answer": answer["text"], "idx": place, "label": answer["label"]})
        elif task == "record":
            (query,) = row["qas"]
            texts = {"passage": row["passage"]["text"], "query": query["query"], "entities": ["Bob", "Ann"]}
            answers = [answer["text"] for answer in query["answers"]]
            rows.append({**texts, "answers": answers, "idx": {"passage": number, "query": query["idx"]}})
        else:
            label, spans = str(row.pop("label")), row.pop("target", {})
            rows.append({**row, **spans, "label": labels.index(label) if label in labels else int(label)})
    return rows


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    calls: Asked = []

    def load_dataset(name: str, subset: str | None, **options: Any) -> Any:
        calls.append((name, subset, options["split"], options["revision"]))
        if name.endswith("super_glue"):
            rows = _superglue_rows(str(subset))
        elif subset is None:
            rows = [{"premise": f"p<br />{n} ", "hypothesis": "h", "label": n % 3 - 1} for n in range(6)]
            rows.append({"premise": "p", "hypothesis": " ", "label": 1})
        else:
            hidden = options["split"].startswith("test")
            rows = [_glue_row(subset, n, -1 if hidden else n) for n in range(2)]
        return type("Rows", (list,), {"column_names": [*rows[0]]})(rows)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_glue(asked: Asked) -> None:
    hub = Path("hub:nyu-mll/glue")
    split = Glue(tasks=["sst2", "mnli", "stsb"], revision="v1").read(hub, "valid")
    assert asked == [
        ("nyu-mll/glue", "sst2", "validation", "v1"),
        ("nyu-mll/glue", "mnli", "validation_matched", "v1"),
        ("nyu-mll/glue", "mnli", "validation_mismatched", "v1"),
        ("nyu-mll/glue", "stsb", "validation", "v1"),
    ]
    assert split.sources[1] == "sst2 sentence: sentence 1"
    assert split.targets == ["negative", "positive", *["entailment", "neutral"] * 2, "0.0", "1.0"]
    assert [item.subset for item in split.items] == ["", "", *["matched"] * 2, *["mismatched"] * 2, "", ""]
    assert Glue(tasks="sst2").read(hub, "test").targets == ["", ""]
    assert len(Glue().read(hub, "train")) == 18


@pytest.mark.parametrize("task", ["boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc"])
def test_superglue_is_what_the_official_files_are(task: str, asked: Asked, tmp_path: Path) -> None:
    write_superglue(tmp_path, valid=2, tasks=(task,))
    (path,) = tmp_path.rglob("val.jsonl")
    items = SuperGlue(tasks=task).read(Path("hub:aps/super_glue"), "valid").items
    assert asked == [("aps/super_glue", task, "validation", None)]
    assert [item.example for item in items] == read_superglue(path, task).records


def test_both_suites_are_found(asked: Asked) -> None:
    split = Glue(together=True, tasks=["rte"]).read(Path("hub:mirror/glue"), "train")
    assert asked == [("mirror/glue", "rte", "train", None), ("aps/super_glue", "rte", "train", None)]
    assert split.counts() == {"glue/rte": 2, "superglue/rte": 2}
    asked.clear()
    # The revisions of one repository are not those of another.
    SuperGlue(together=True, tasks=["rte"], revision="v1").read(Path("hub:aps/super_glue"), "train")
    assert asked == [("nyu-mll/glue", "rte", "train", None), ("aps/super_glue", "rte", "train", "v1")]


def test_classification(asked: Asked) -> None:
    hub = Path("hub:stanfordnlp/snli")
    task = Classification(text="premise", text_pair="hypothesis", label="label", ignored_labels=["-1"])
    valid = task.read(hub, "valid")
    assert asked == [("stanfordnlp/snli", None, "train", None), ("stanfordnlp/snli", None, "validation", None)]
    assert [row.texts for row in valid.records] == [(f"p {n}", "h") for n in (1, 2, 4, 5)]
    assert [row.label for row in valid.records] == ["0", "1", "0", "1"]
    assert (valid.known_classes().values, valid.skipped) == (("0", "1"), 1)
    asked.clear()
    glue = Classification(glue_task="mnli").read(Path("hub:nyu-mll/glue"), "valid")
    assert asked == [("nyu-mll/glue", "mnli", "validation_matched", None)]
    assert glue.indices(glue.known_classes()) == [0, 1]
