"""Tables of texts and classes: CSV, TSV, JSON lines."""

import gzip
import json
from pathlib import Path

import pytest

from synthesizer_lab.data.classification import Columns, LabeledText, find_classes, read_labeled
from synthesizer_lab.data.source import Source
from synthesizer_lab.tasks import UserError


def _read(path: Path, text: str, columns: Columns) -> list[LabeledText]:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return [record for record in read_labeled(Source("x", (path,)), columns) if record is not None]


def test_csv_quotes_are_quoting_and_fields_may_be_long(tmp_path: Path) -> None:
    text = 'Class,Title,Body\n3,"Rain, at last","He said ""finally""\nand danced."\n\n1,Sun,Never\n'
    columns = Columns(("Title", "Body"), "Class")
    one, two = _read(tmp_path / "a.csv", text, columns)
    assert one.texts == ('Rain, at last He said "finally"\nand danced.',)
    assert (one.id, one.label) == ("2", "3")
    assert (two.id, two.label, two.texts) == ("5", "1", ("Sun Never",))
    (long,) = _read(tmp_path / "a.csv", f"text,label\n{'long ' * 40_000},1\n", Columns())
    assert len(long.texts[0]) == 199_999


def test_tsv_quotes_are_text_and_columns_have_numbers(tmp_path: Path) -> None:
    text = 'A "cat sat\tA cat.\t0\nNo dog\tA dog.\t2\n'
    one, two = _read(tmp_path / "a.tsv.gz", text, Columns((1,), 3, pair=(2,)))
    assert (one.texts, one.label) == (('A "cat sat', "A cat."), "0")
    assert (two.texts, two.label, two.id) == (("No dog", "A dog."), "2", "2")


def test_json_lines_with_breaks(tmp_path: Path) -> None:
    rows = [{"id": 5, "text": "Fine.<br /><br />Very.", "label": 1}, {"text": "é", "label": False}]
    one, two = _read(tmp_path / "a.jsonl.gz", "".join(json.dumps(row) + "\n" for row in rows), Columns())
    assert (one.id, one.texts, one.label) == ("5", ("Fine. Very.",), "1")
    assert (two.id, two.texts, two.label) == ("2", ("é",), "False")


def test_classes_are_ordered_and_named() -> None:
    for labels, ordered in (
        (["10", "9", "10", "-1"], ["-1", "9", "10"]),
        (["1.5", "none"], ["1.5", "none"]),
        # Whatever the order of the set.
        (["2.0", "1", "2", "1.0"], ["1", "1.0", "2", "2.0"]),
    ):
        assert list(find_classes("a.csv", labels)) == ordered
    assert find_classes("a.csv", ["2.5", "1"], ["low", "high"]) == {"1": "low", "2.5": "high"}
    assert find_classes("a.csv", ["pos", "neg", "pos"], ["bad", "good"]) == {"neg": "bad", "pos": "good"}
    for labels, names, message in (
        (["2.5", "1"], [], r"1, 2\.5.*--set regression=true"),
        (["a", "b"], ["x"], r"2 classes: a, b.*expected 1"),
        (["a", "a"], [], "1 class: a; expected at least two, or choose other columns"),
    ):
        with pytest.raises(UserError, match=message):
            find_classes("a.csv", labels, names)


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.csv", "text,label\nx\n", Columns(), "line 2: got 1 columns; expected 2: text, label;"),
        ("a.csv", f"text,label,{'x' * 400}\ny\n", Columns(), "line 2: got 1 columns; expected 3: text, label, …;"),
        ("a.csv", "text,label\nx, \n", Columns(), "line 2: field 'label' is blank"),
        ("a.csv", 'text,label\n"x,1\n', Columns(), "line 2: unexpected end of data; expected CSV.*cannot skip it"),
        ("a.csv", "text,class\nx,1\n", Columns(label="clas"), ": no column 'clas'; .* text, class; did .* 'class'"),
        ("a.jsonl", '{"text": "x", "class": "y"}', Columns(), "no field 'label'; .*: text, class .*label=….*skip"),
        ("a.jsonl", '{"text": ["x"], "label": 1}\n', Columns(), "line 1: field 'text' is not text"),
        ("a.jsonl", '{"text": "x", "label": "y"}', Columns(numeric=True), "got the label 'y'; expected a number"),
        ("a.txt", "x\n", Columns(), "expected a file with one of the endings .csv, .tsv, .jsonl, .json"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, columns: Columns, message: str) -> None:
    with pytest.raises(UserError, match=f"{name}.*{message}"):
        _read(tmp_path / name, text, columns)
