"""Data sets of the hub, whose library is replaced by one that has rows in its layout: no network is needed."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synthesizer_lab.data.glue import SUITES, read_file
from synthesizer_lab.data.hub import HubDataset, NoSplitError, is_hub_name
from synthesizer_lab.errors import UserError
from synthesizer_lab.tasks.glue import Glue, SuperGlue
from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthesizer_lab.tasks.large import LargeSplit, encode_large, new_tokenizer
from synthesizer_lab.tasks.summarization import Summarization
from synthesizer_lab.training.arguments import SynthesizerTrainingArguments
from synthesizer_lab.training.run import read_splits
from tasks.glue_files import superglue_row, write_superglue


class _Table:
    def __init__(self, rows: list[dict[str, Any]], read: list[int]) -> None:
        self.rows, self.read = rows, read
        self.column_names = [*rows[0]]
        self.data = SimpleNamespace(nbytes=10**9)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            self.read.append(1)
            yield row


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A hub with one data set; it records what it is asked for."""
    fake = SimpleNamespace(calls=[], read=[])
    rows = [{"text": f"text {number}\n", "id": number, "article": "a b", "highlights": "a"} for number in range(5)]

    def load_dataset(name: str, subset: str | None, **options: Any) -> _Table:
        fake.calls.append((name, subset, options))
        if name != "owner/name":
            raise FileNotFoundError(f"no data set\n{name}")
        if options["split"] not in ("train", "validation"):
            raise ValueError(f"Unknown split {options['split']!r}")
        return _Table(rows, fake.read)

    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", load_dataset)
    return fake


def test_rows_of_columns(hub: SimpleNamespace) -> None:
    assert is_hub_name(Path("hub:owner/name"))
    assert not is_hub_name(Path("owner/name"))
    source = HubDataset.of(Path("hub:owner/name"), "small", "v1")
    assert [row["text"] for row in source.rows("valid", ["text"])] == [f"text {number}\n" for number in range(5)]
    assert hub.calls == [("owner/name", "small", {"split": "validation", "revision": "v1", "streaming": False})]
    with pytest.raises(UserError, match=r"owner/name.*body.*text, id"):
        [*source.rows("train", ["body"])]
    with pytest.raises(NoSplitError, match=r"owner/name.*'best'"):
        [*source.rows("best", ["text"])]
    with pytest.raises(UserError, match=r"hub:no/other, split 'train'.*no data set no/other"):
        [*HubDataset.of(Path("hub:no/other")).rows("train", ["text"])]
    for name in ("hub:", "hub:csv", "hub:a/b/c", "hub:/b", "a/b"):
        with pytest.raises(UserError, match="hub:OWNER/NAME"):
            HubDataset.of(Path(name))


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"hub:owner/name needs datasets.*\[train\]"):
        [*HubDataset.of(Path("hub:owner/name")).rows("train", ["text"])]


@pytest.mark.parametrize("streaming", [False, True])
def test_large_text_of_the_hub(
    hub: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    monkeypatch.setattr(sys.modules["datasets"].config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = LanguageModeling()
    training = SynthesizerTrainingArguments(max_steps=1, streaming=streaming)
    splits = read_splits(task, Path("hub:owner/name"), training)
    assert len(splits["valid"]) == 5
    assert {call[2]["streaming"] for call in hub.calls if "streaming" in call[2]} == {streaming}
    train = splits["train"]
    assert isinstance(train, LargeSplit)
    assert ("streamed" in train.fingerprint()) is streaming
    examples = encode_large(train, new_tokenizer(task, train, 300, 64), 64, "error", print)
    ((_, window),) = examples.windows(0, 0)
    assert len(window) == 5


@pytest.mark.usefixtures("hub")
def test_summaries() -> None:
    split = Summarization().read(Path("hub:owner/name"), "train")
    assert (split.ids[4], split.sources[4], split.references[4]) == ("4", "a b", ("a",))
    with pytest.raises(UserError, match=r"hub:owner/name, row 1: .*'id'"):
        Summarization("id", "text").read(Path("hub:owner/name"), "train")


Asked = list[tuple[str, str | None, str, str | None]]


def _glue_row(task: str, number: int, label: float) -> dict[str, Any]:
    texts = {name: f"{name} {number} " for name in SUITES["glue"][task].texts}
    return {**texts, "label": label, "idx": number}


def _superglue_rows(task: str) -> list[dict[str, Any]]:
    """The rows of `superglue_row`, as the hub has them."""
    rows = []
    for number in range(5, 7):
        row = superglue_row(task, number)
        labels = SUITES["superglue"][task].labels
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
        else:
            hidden = options["split"].startswith("test")
            rows = [_glue_row(subset, n, -1 if hidden else n) for n in range(2)]
        return type("Rows", (list,), {"column_names": [*rows[0]]})(rows)

    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", load_dataset)
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
    assert [item.subset for item in split.references] == ["", "", *["matched"] * 2, *["mismatched"] * 2, "", ""]
    assert Glue(tasks="sst2").read(hub, "test").targets == ["", ""]
    assert len(Glue().read(hub, "train")) == 18


@pytest.mark.parametrize("task", ["boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc"])
def test_superglue_is_what_the_official_files_are(task: str, asked: Asked, tmp_path: Path) -> None:
    write_superglue(tmp_path, valid=2, tasks=(task,))
    (path,) = tmp_path.rglob("val.jsonl")
    items = SuperGlue(tasks=task).read(Path("hub:aps/super_glue"), "valid").references
    assert asked == [("aps/super_glue", task, "validation", None)]
    assert items == [*read_file(path, SUITES["superglue"][task])]
