"""GLUE's and SuperGLUE's files, in fixtures of the official layout."""

import json
from pathlib import Path
from typing import Any

import pytest

from synthesizer_lab.data.glue import NESTED, SUITES, GlueExample, read_examples
from synthesizer_lab.data.source import Source
from synthesizer_lab.errors import UserError
from synthesizer_lab.tasks.glue import Glue, SuperGlue
from tasks.glue_files import superglue_row, write_superglue


def read(folder: Path, task: str, *rows: str | dict[str, Any], skip: bool = False) -> tuple[list[GlueExample], int]:
    """Read rows of SuperGLUE, which are objects, or of GLUE, whose columns have "|" between them here."""
    lines = [row.replace("|", "\t") if isinstance(row, str) else json.dumps(row) for row in rows]
    suite, ending = ("glue", "tsv") if isinstance(rows[0], str) else ("superglue", "jsonl")
    path = folder / f"a.{ending}"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = [*read_examples(Source("", (path,)), SUITES[suite][task], skip_bad_lines=skip)]
    return [example for example in found if example is not None], found.count(None)


def test_cola_has_no_header(tmp_path: Path) -> None:
    one, two = read(tmp_path, "cola", "x1|1||Birds sing.", "x1|0|*|Sing birds the.")[0]
    assert (one.id, one.texts, one.label) == ("0", {"sentence": "Birds sing."}, 1)
    assert (two.id, two.label) == ("1", 0)
    (hidden,) = read(tmp_path, "cola", "index|sentence", "0|Fish swim.")[0]
    assert (hidden.id, hidden.texts["sentence"], hidden.label) == ("0", "Fish swim.", None)


def test_quotes_are_text_and_the_byte_order_mark_is_not(tmp_path: Path) -> None:
    header = "\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String"
    one, two = read(tmp_path, "mrpc", header, '1|10|11|" It never closes .|He said " it .', '0|12|13|P .|"')[0]
    assert one.texts == {"sentence1": '" It never closes .', "sentence2": 'He said " it .'}
    assert (one.label, two.label, two.texts["sentence2"]) == (1, 0, '"')


def test_malformed_lines_of_qqp_are_counted(tmp_path: Path) -> None:
    rows = ("7|1|2|Why?|Why so?|1", "8|3|4|A question that breaks", "9|5|6|Who?|What?|0")
    parsed = read(tmp_path, "qqp", "id|qid1|qid2|question1|question2|is_duplicate", *rows)
    assert ([(example.id, example.label) for example in parsed[0]], parsed[1]) == ([("7", 1), ("9", 0)], 1)


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("sst2", ("sentence|label", "fine .|1", "a|b|1"), "line 3: got 3 columns; expected 2: sentence, label"),
        ("sst2", ("sentence|label", "fine .|1", "x|7"), r"line 3: got label '7'.*negative, positive"),
        ("stsb", ("sentence1|sentence2|score", "a|b|4.250", "a|b|5.1"), r"line 3: .*5\.1.* 0 … 5"),
        ("rte", ("sentence|label", "fine .|1"), "sentence, label.*sentence1, sentence2"),
    ],
)
def test_errors_in_glue_files_are_named(tmp_path: Path, task: str, rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=rf"a\.tsv.*{message}"):
        read(tmp_path, task, *rows)
    if task != "rte":
        parsed = read(tmp_path, task, *rows, skip=True)
        assert ([example.label for example in parsed[0]], parsed[1]) == ([1 if task == "sst2" else 4.25], 1)


def test_multirc_has_an_example_per_answer(tmp_path: Path) -> None:
    answers = [{"text": "Ann", "idx": 8, "label": 1}, {"text": "Bob", "idx": 9, "label": 0}]
    questions = [
        {"question": "Who?", "idx": 4, "answers": answers},
        {"question": "When?", "idx": 5, "answers": [{"text": "Now", "idx": 10, "label": 1}]},
    ]
    row = {"idx": 2, "version": 1.1, "passage": {"text": "Ann came now.", "questions": questions}}
    examples = read(tmp_path, "multirc", row)[0]
    expected = [("2.4.8", "2.4", 1), ("2.4.9", "2.4", 0), ("2.5.10", "2.5", 1)]
    assert [(example.id, example.group, example.label) for example in examples] == expected
    assert examples[1].texts == {"question": "Who?", "answer": "Bob", "paragraph": "Ann came now."}
    # A malformed line is skipped as a whole.
    broken = json.loads(json.dumps(row).replace('"label": 0', '"label": 2'))
    parsed = read(tmp_path, "multirc", broken, row, skip=True)
    assert (parsed[0], parsed[1]) == (examples, 1)


def test_record_has_an_example_per_query(tmp_path: Path) -> None:
    spans = [{"start": 1, "end": 3}, {"start": 9, "end": 11}, {"start": 25, "end": 27}]
    answers = [{"start": 25, "end": 27, "text": "Ann"}, {"text": "Zoë"}, {"text": "Ann"}]
    query = {"query": "@placeholder went away", "answers": answers, "idx": 6}
    passage = {"text": " Zoë met Ann.\n@highlight\nAnn left", "entities": spans}
    (example,) = read(tmp_path, "record", {"source": "s", "passage": passage, "qas": [query], "idx": 1})[0]
    assert example.texts["entities"] == "Ann, Zoë"
    assert (example.id, example.label, example.answers) == ("1.6", None, ("Ann", "Zoë"))


def _wsc(text: str, index: int, pronoun: str, referent: str = "The cat", label: bool = True) -> dict[str, Any]:
    target = {"span1_index": 0, "span1_text": referent, "span2_index": index, "span2_text": pronoun}
    return {"text": text, "target": target, "idx": 0, "label": label}


def test_wsc_marks_the_pronoun_and_writes_the_referent_as_in_the_text(tmp_path: Path) -> None:
    for index, marked in (
        (4, "The cat ate because *it* was hungry."),
        # The index is one too low, and the pronoun is followed by punctuation.
        (3, 'The cat purred. "Feed *it*," said Ann.'),
        # The nearest of two.
        (5, "it saw the dog and *it* ran"),
    ):
        (example,) = read(tmp_path, "wsc", _wsc(marked.replace("*", ""), index, "it"))[0]
        assert example.texts["text"] == marked
    (example,) = read(tmp_path, "wsc", _wsc("the old cat ate it.", 4, "it", "The old\ncat.", False))[0]
    assert (example.texts["referent"], example.label) == ("the old cat", 0)


@pytest.mark.parametrize(
    ("task", "row", "fact"),
    [
        ("cb", {"premise": "p", "hypothesis": 3, "idx": 1}, "'hypothesis': got int"),
        ("wsc", _wsc("No pronoun here.", 1, "it"), "'it'"),
        ("record", {"idx": 1, "qas": [], "passage": {"text": "t", "entities": [{"start": 1}]}}, "'end'"),
    ],
)
def test_malformed_superglue_lines_are_named(tmp_path: Path, task: str, row: dict[str, Any], fact: str) -> None:
    with pytest.raises(UserError, match=rf"a\.jsonl, line 1: .*{fact}"):
        read(tmp_path, task, row)


Asked = list[tuple[str, str | None, str, str | None]]


def _glue_row(task: str, number: int, label: float) -> dict[str, Any]:
    return {**{name: f"{name} {number} " for name in SUITES["glue"][task].texts}, "label": label, "idx": number}


def _superglue_rows(task: str) -> list[dict[str, Any]]:
    """The rows of `superglue_row`, as the hub has them; of MultiRC and ReCoRD see the tests of these."""
    flatten, labels = NESTED.get(task, lambda row: iter([row])), SUITES["superglue"][task].labels
    rows = [row for number in range(5, 7) for row in flatten(superglue_row(task, number))]
    for row in rows:
        row.update(row.pop("target", {}))
        if "label" in row and str(row["label"]) in labels:
            row["label"] = labels.index(str(row["label"]))
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
    split = Glue(tasks=["sst2", "mnli", "stsb"], revision="v1").records(hub, "valid").load()
    assert asked == [
        ("nyu-mll/glue", "sst2", "validation", "v1"),
        ("nyu-mll/glue", "mnli", "validation_matched", "v1"),
        ("nyu-mll/glue", "mnli", "validation_mismatched", "v1"),
        ("nyu-mll/glue", "stsb", "validation", "v1"),
    ]
    assert split.sources[1] == "sst2 sentence: sentence 1"
    assert split.targets == ["negative", "positive", *["entailment", "neutral"] * 2, "0.0", "1.0"]
    assert [item.subset for item in split.references] == ["", "", *["matched"] * 2, *["mismatched"] * 2, "", ""]
    assert Glue(tasks="sst2").records(hub, "test").load().targets == ["", ""]
    assert len(Glue().records(hub, "train").load()) == 18


@pytest.mark.parametrize("task", ["boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc"])
def test_superglue_is_what_the_official_files_are(task: str, asked: Asked, tmp_path: Path) -> None:
    write_superglue(tmp_path, valid=2, tasks=(task,))
    (path,) = tmp_path.rglob("val.jsonl")
    items = SuperGlue(tasks=task).records(Path("hub:aps/super_glue"), "valid").load().references
    assert asked == [("aps/super_glue", task, "validation", None)]
    assert items == [*read_examples(Source("", (path,)), SUITES["superglue"][task])]
