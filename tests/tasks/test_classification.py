"""Classification: options, files, sequences, scores, predictions."""

import csv
import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from models.conftest import word_tokenizer
from synthesizer_lab.data.source import Source
from synthesizer_lab.data.tokenizer import train_tokenizer
from synthesizer_lab.tasks import UserError, make_task
from synthesizer_lab.tasks.base import EvaluationLoop, build_model, evaluate_loss
from synthesizer_lab.tasks.classification import Classification, LabeledText, TextSplit, find_classes, guess_columns
from synthesizer_lab.tasks.large import new_tokenizer
from synthetic_attention.models import SynthesizerConfig

ROWS = [("3", "Rain, again", "It rains."), ("1", "Tea", 'The "tea" is hot.'), ("2", "Wind", "It blows.")]
PAIRS = {"text": 1, "text_pair": 2, "label": 3, "held_out": 0.3}
PLAIN = Classification("text", label="label")
CLAS, NUMBER = replace(PLAIN, label="clas"), replace(PLAIN, regression=True)


def write_csv(path: Path, rows: Sequence[Sequence[str]] = ROWS) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("Class Index", "Title", "Description"), *rows])


@pytest.fixture
def news(tmp_path: Path) -> Path:
    write_csv(tmp_path / "train.csv", ROWS * 4)
    write_csv(tmp_path / "valid.csv")
    return tmp_path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Pairs without header, three for each first text."""
    lines = [f"text {n // 3} here\tother {n}\t{n % 3}" for n in range(60)]
    (tmp_path / "train_pairs.tsv").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def test_news_is_read_by_its_header(news: Path) -> None:
    task = make_task("classification", {"classes": ["World", "Sports", "Business"]})
    train, valid = task.records(news, "train").load(), task.records(news, "valid").load()
    assert (train.name, len(train), len(valid)) == ("train", 12, 3)
    assert valid.records[1].texts == ('Tea The "tea" is hot.',)
    assert valid.classes == train.classes == {"1": "World", "2": "Sports", "3": "Business"}
    changes = task.config_changes(train, new_tokenizer(task, train, 300, 64))
    assert (changes["id2label"], changes["label2id"]["Business"]) == ({0: "World", 1: "Sports", 2: "Business"}, 2)
    assert (changes["problem_type"], changes["type_vocab_size"]) == ("single_label_classification", 0)
    with pytest.raises(UserError, match=r"3 classes: 1, 2, 3.*expected 2"):
        Classification(classes=["a", "b"]).records(news, "train").load()
    write_csv(news / "valid.csv", [("4" * 600, "a", "b"), ("2", "c", "d")])
    with pytest.raises(UserError, match=r"valid, example 2: got class '4{79}; expected one of: 1, 2, 3, .*ignored"):
        task.encode(task.records(news, "valid").load(), train_tokenizer(["tea"], 270, 9), 9)


def test_a_tokenizer_without_a_start_token_as_t5s() -> None:
    tokenizer = Classification().adapt_tokenizer(word_tokenizer(eos_token="</s>"))
    end = tokenizer.eos_token_id
    assert tokenizer("w5", "w6")["input_ids"] == [5, end, 6, end]


def test_a_part_of_the_training_file_is_held_out_by_first_texts(pairs: Path) -> None:
    task = make_task("classification", {**PAIRS, "classes": ["yes", "maybe", "no"]})
    train, valid = task.records(pairs, "train").load(), task.records(pairs, "valid").load()
    assert len(train) + len(valid) == 60
    assert 5 < len(valid) < 35
    assert {row.texts[0] for row in train.records}.isdisjoint(row.texts[0] for row in valid.records)
    assert train.classes == valid.classes
    assert valid.classes == {"0": "yes", "1": "maybe", "2": "no"}
    assert task.records(pairs, "valid").load().fingerprint() == valid.fingerprint() != train.fingerprint()


def test_a_tenth_of_the_training_data_is_held_out_by_default(tmp_path: Path) -> None:
    file, task = tmp_path / "train.csv", Classification()
    write_csv(file, [(str(n % 3), f"title {n}", "text") for n in range(300)])
    for data in (file, file.parent):
        train, valid = task.records(data, "train").load(), task.records(data, "dev").load()
        assert len(train) + len(valid) == 300
        assert 15 < len(valid) < 50
        assert (train.note, valid.name, valid.note[:28]) == ("", "valid", "10% of the training data, he")
        assert train.classes == valid.classes == {"0": "0", "1": "1", "2": "2"}
        assert task.encode(valid, new_tokenizer(task, train, 300, 64), 64).note == valid.note
    for held_out, split, advice in ((None, "test", "--split valid"), (0.0, "train", "--set held_out=0.1")):
        with pytest.raises(UserError, match=rf"train\.csv: got split '{split}'.* train and valid.* {advice}.* --data"):
            replace(task, held_out=held_out).records(file, split).load()
    write_csv(file, [("0", "title", "text")])
    with pytest.raises(UserError, match="no text in 10% of the training data, held out"):
        task.records(file, "valid").load()


def test_labels_can_be_ignored(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("gold_label\ttext\nyes\ta\n-\tb\nno\tc\n", encoding="utf-8")
    assert Classification(ignored_labels=["-"]).records(tmp_path, "train").load().classes == {"no": "no", "yes": "yes"}


def test_columns_are_guessed_from_known_names_only() -> None:
    def guess(*names: str) -> Any:
        return guess_columns(Path("train.tsv"), names)

    news = guess("Class Index", "Title", "Description")
    assert (news.text, news.pair, news.label) == (("Title", "Description"), (), "Class Index")
    snli = guess("pairID", "sentence1", "sentence2", "gold_label")
    assert (snli.text, snli.pair, snli.label) == (("sentence1",), ("sentence2",), "gold_label")
    assert guess("text", "text_pair", "score").pair == ("text_pair",)
    for names in (("a", "b", "1"), ("text", "words"), ("text", "label", "category"), ("label",)):
        with pytest.raises(UserError, match=rf"train\.tsv: cannot tell the columns .* {', '.join(names)};"):
            guess(*names)


def _loop(task: Classification, data: Path) -> EvaluationLoop:
    """A small new model for training data, and a tokenizer."""
    split = task.records(data, "train").load()
    tokenizer = new_tokenizer(task, split, 300, 64)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_layers": 1, "max_position_embeddings": 64}
    config = SynthesizerConfig(**sizes, **task.config_changes(split, tokenizer))  # type: ignore[arg-type]
    return EvaluationLoop(build_model(task, config).eval(), tokenizer)


def test_sequences_are_those_of_the_tokenizer(pairs: Path, tmp_path: Path) -> None:
    task = make_task("classification", PAIRS)
    split = task.records(pairs, "train").load()
    new_tokenizer(task, split, 300, 64).save_pretrained(tmp_path / "saved")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")
    examples = task.encode(split, tokenizer, 64, training=True)
    rows = (0, 5, 9)
    batch = task.collate([examples[row] for row in rows], 0)
    assert batch.pop("labels").tolist() == [int(split.records[row].label) for row in rows]
    expected = tokenizer(*zip(*(split.records[row].texts for row in rows), strict=True), padding=True)
    assert {name: value.tolist() for name, value in batch.items()} == dict(expected)
    assert examples.lengths().shape == (len(split), 1)


def test_long_texts_are_refused_dropped_or_cut(news: Path) -> None:
    task = Classification()
    write_csv(news / "train.csv", [("1", "a", "b"), ("2", "a", "b " * 99), ("3", "a", "c")])
    split = task.records(news, "train").load()
    tokenizer = new_tokenizer(task, split, 300, 64)
    with pytest.raises(UserError, match=r"train texts: 1 of 3 texts are longer .* of 12 tokens \(the first is text 2,"):
        task.encode(split, tokenizer, 12)
    dropped = task.encode(split, tokenizer, 12, "drop")
    assert ([label for *_, label in dropped.items()], dropped.dropped, dropped.truncated) == ([0, 2], 1, 0)
    cut = task.encode(split, tokenizer, 12, "truncate")
    assert (len(cut), cut.truncated, cut.lengths().max()) == (3, 1, 12)
    with pytest.raises(UserError, match="no text is left of 3"):
        task.encode(split, tokenizer, 2, "drop")


def test_evaluation_of_classes(news: Path, metrics: Any) -> None:
    task = Classification(classes=["World", "Sports", "Business"])
    loop, valid = _loop(task, news), task.records(news, "valid").load()
    found = task.evaluate(loop, valid)
    lines = [json.loads(line) for line in found.predictions.splitlines()]
    assert [(line["id"], line["gold"]) for line in lines] == [("2", "Business"), ("3", "World"), ("4", "Sports")]
    golds, guesses = [line["gold"] for line in lines], [line["predicted"] for line in lines]
    assert found.scores["accuracy"] == pytest.approx(100 * metrics.accuracy_score(golds, guesses))
    expected = metrics.f1_score(golds, guesses, average="macro", zero_division=0, labels=task.classes)
    assert found.scores["macro_f1"] == pytest.approx(100 * expected)
    for line, record in zip(lines, valid.records, strict=True):
        logits = loop.model(**loop.tokenizer(record.texts[0], return_tensors="pt")).logits
        assert line["score"] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-5)
        assert line["predicted"] == loop.model.config.id2label[int(logits.argmax())]
    examples = task.encode(valid, loop.tokenizer, 64)
    assert task.validate(replace(loop, batch_tokens=20), valid, examples, 0.0) == found.scores
    assert (found.examples, found.truncated) == (3, 0)


def test_classes_of_a_model_are_found_without_the_training_file(news: Path, metrics: Any) -> None:
    task = Classification(classes=["World", "Sports", "Business"])
    loop = _loop(task, news)
    expected = task.evaluate(loop, task.records(news, "valid").load())
    (news / "train.csv").unlink()
    assert task.evaluate(loop, task.records(news, "valid").load()).predictions == expected.predictions
    for labels, values in ((["2", "-1"], [1, None]), (["Sports"], [1]), (["c", "a", "b"], [2, 0, 1])):
        split = TextSplit("test", [LabeledText("1", ("tea",), label) for label in labels], task)
        split = split.with_classes({"1": "World", "2": "Sports", "3": "Business"})
        assert split.values(task.class_names) == values
    write_csv(news / "valid.csv", [("World", "a", "b"), ("Sports", "a", "c")])
    named = task.evaluate(loop, task.records(news, "valid").load())
    assert [json.loads(line)["gold"] for line in named.predictions.splitlines()] == ["World", "Sports"]
    write_csv(news / "valid.csv", [("7", "a", "b"), ("8", "a", "c")])
    with pytest.raises(UserError, match=r"got class '[78]'.*World, Sports, Business, the classes of the model"):
        task.evaluate(loop, task.records(news, "valid").load())


@pytest.mark.parametrize("last", ["", '""', "-1", None])
def test_test_files_may_lack_the_class(news: Path, metrics: Any, last: str | None) -> None:
    task = Classification()
    loop = _loop(task, news)
    name, value = ("", "") if last is None else (",Class Index", f",{last}")
    (news / "test.csv").write_text(f"Title,Description{name}\na,b{value}\nc,d{value}\n", encoding="utf-8")
    split = task.records(news, "test").load()
    assert [record.label for record in split.records] == ["", ""]
    assert not split.has_labels
    found = task.evaluate(loop, split)
    golds = [json.loads(line)["gold"] for line in found.predictions.splitlines()]
    assert (found.scores, found.examples, golds) == ({}, 0, [None, None])
    if last is not None:
        with (news / "test.csv").open("a") as file:
            file.write("e,f,1\n")
        # With the classes of the training file, or of the model.
        for own, data in ((task, news), (replace(task, held_out=0.0), news / "test.csv")):
            assert task.evaluate(loop, own.records(data, "test").load()).examples == 1


def test_data_sets_of_the_hub_have_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    train: list[dict[str, Any]] = [{"text": f"tea {n}", "label": n % 2} for n in range(4)]
    gaps = [{"text": None, "label": 1}, {"text": "wind", "label": None}, {"text": " ", "label": 0}]
    test = [{"text": "tea", "label": -1}, {"text": "wind", "label": None}, {"text": "<br /> ", "label": 1}]
    hub, data = {"train": [*train, *gaps], "validation": train, "test": test}, Path("hub:owner/name")

    def load_dataset(_name: str, _subset: str | None, *, split: str, **_: Any) -> Any:
        if split not in hub:
            raise ValueError(f"Unknown split {split!r}. Should be one of {list(hub)}.")
        return type("Rows", (list,), {"column_names": [*hub[split][0]]})(hub[split])

    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", load_dataset)
    split = Classification().records(data, "train").load()
    assert (len(split), split.skipped, split.classes) == (4, 3, {"0": "0", "1": "1"})
    hidden = Classification().records(data, "test").load()
    assert ([record.label for record in hidden.records], hidden.skipped) == (["", ""], 1)


@pytest.mark.parametrize(
    ("labels", "named", "names", "values"),
    [
        (("1", "-1", "-1"), (), ("-1", "1"), [1, 0, 0]),
        (("1", "-1", "-1"), ("bad", "good"), ("bad", "good"), [1, 0, 0]),
        (("0", "1", "-1"), ("bad", "good"), ("bad", "good"), [0, 1, None]),
        (("1", "-1", ""), (), ("0", "1"), [1, None, None]),
        (("-1", "-1", "-1"), (), ("0", "1"), [None, None, None]),
    ],
)
def test_minus_one_is_a_class_or_hidden(
    labels: Sequence[str], named: Sequence[str], names: Sequence[str], values: list[int | None]
) -> None:
    records = [LabeledText(str(number), ("tea",), label) for number, label in enumerate(labels)]
    split = TextSplit("test", records, Classification(classes=[*named]))
    assert split.values(names) == values
    assert split.has_labels == (labels != ("-1", "-1", "-1"))


def test_regression(tmp_path: Path, metrics: Any) -> None:
    stats = pytest.importorskip("scipy.stats")
    for name in ("train", "valid"):
        rows = [{"text": "tea " * n, "score": n * 0.5} for n in range(1, 9)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = Classification(regression=True)
    assert (task.metric_for_best_model, Classification().metric_for_best_model) == ("pearson", "accuracy")
    split, loop = task.records(tmp_path, "train").load(), _loop(task, tmp_path)
    model, tokenizer = loop.model, loop.tokenizer
    assert model.config.problem_type == "regression"
    batch = task.collate([task.encode(split, tokenizer, 64)[index] for index in (0, 3)], 0)
    assert (batch["labels"].dtype, batch["labels"].tolist()) == (torch.float32, [0.5, 2.0])
    assert "token_type_ids" not in batch
    # A label of −100 is a number like others.
    encoded = task.encode(split, tokenizer, 64)
    encoded.numbers[:, 1] = -100
    outputs = [model(**tokenizer(row.texts[0], return_tensors="pt")).logits.item() for row in split.records]
    expected = np.mean([(output + 100) ** 2 for output in outputs])
    assert evaluate_loss(task, loop, encoded) == pytest.approx(expected, rel=1e-5)
    found = task.evaluate(loop, task.records(tmp_path, "valid").load())
    lines = [json.loads(line) for line in found.predictions.splitlines()]
    golds, guesses = [line["gold"] for line in lines], [line["predicted"] for line in lines]
    assert found.scores["pearson"] == pytest.approx(100 * stats.pearsonr(golds, guesses).statistic, abs=0.1)
    assert {line["score"] for line in lines} == {None}
    assert task.generate(loop, ["tea", ""])[0] == [str(guesses[0]), ""]
    (tmp_path / "valid.jsonl").write_text('{"text": "a", "score": "good"}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"valid\.jsonl, line 1: got the label 'good'; expected a number"):
        task.records(tmp_path, "valid").load()


def test_a_line_gives_its_class(pairs: Path) -> None:
    task = make_task("classification", PAIRS)
    loop = _loop(task, pairs)
    lines = ["text 1 here\tother", "", "text\tmore"]
    inputs = [loop.tokenizer(*line.split("\t"), return_tensors="pt") for line in lines]
    one, _, two = (loop.model.config.id2label[int(loop.model(**ids).logits.argmax())] for ids in inputs)
    assert task.generate(loop, lines) == ([one, "", two], 0)
    for line in ("text", "a\tb\tc", "a\t "):
        with pytest.raises(UserError, match="input, line 8: expected a pair of texts with a tab between them"):
            task.generate(loop, ["a\tb", line], first_line=7)
    long = ["a\t" + "b" * 99]
    with pytest.raises(UserError, match=r"input texts: 1 of 1 texts are longer .*; pass --on-long truncate"):
        task.generate(loop, long)
    assert task.generate(replace(loop, on_long="truncate"), long)[1] == 1


def _read(path: Path, text: str, task: Classification = PLAIN) -> list[LabeledText]:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return [record for record in task.labeled(Source("x", (path,))) if record is not None]


def test_csv_quotes_are_quoting_and_fields_may_be_long(tmp_path: Path) -> None:
    text = 'Class,Title,Body\n3,"Rain, at last","He said ""finally""\nand danced."\n\n1,,Never\n'
    one, two = _read(tmp_path / "a.csv", text, Classification(["Title", "Body"], label="Class"))
    assert one.texts == ('Rain, at last He said "finally"\nand danced.',)
    assert (one.id, one.label) == ("2", "3")
    assert (two.id, two.label, two.texts) == ("5", "1", ("Never",))
    (long,) = _read(tmp_path / "a.csv", f"text,label,x,x\n{'long ' * 40_000},1,,\n")
    assert len(long.texts[0]) == 199_999


def test_tsv_quotes_are_text_and_columns_have_numbers(tmp_path: Path) -> None:
    one, two = _read(tmp_path / "a.tsv.gz", 'A "cat sat\tA cat.\t0\nNo dog\tA dog.\t2\n', Classification(1, 2, 3))
    assert (one.texts, one.label) == (('A "cat sat', "A cat."), "0")
    assert (two.texts, two.label, two.id) == (("No dog", "A dog."), "2", "2")


def test_json_lines_with_breaks(tmp_path: Path) -> None:
    rows = [{"id": 5, "text": "Fine.<br /><br />Very.", "label": 1}, {"text": "é", "label": False}]
    one, two = _read(tmp_path / "a.jsonl.gz", "".join(json.dumps(row) + "\n" for row in rows))
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
    ("name", "text", "task", "message"),
    [
        ("a.csv", "text,label\nx\n", PLAIN, "line 2: got 1 columns; expected 2: text, label;"),
        ("a.csv", f"text,label,{'x' * 400}\ny\n", PLAIN, "line 2: got 1 columns; expected 3: text, label, …;"),
        ("a.csv", "text,label\nx, \n", PLAIN, "line 2: field 'label' is blank"),
        ("a.csv", 'text,label\n"x,1\n', PLAIN, "line 2: unexpected end of data; expected CSV.*cannot skip it"),
        ("a.csv", "text,class\nx,1\n", CLAS, ": no column 'clas'; .* text, class; did .* 'class'"),
        ("a.csv", "text,label,label\nx,1,2\n", PLAIN, ": several columns are called 'label'; rename them"),
        ("a.jsonl", '{"text": "x", "class": "y"}', PLAIN, "no field 'label'; .*: text, class .*label=….*skip"),
        ("a.jsonl", '{"text": ["x"], "label": 1}\n', PLAIN, "line 1: field 'text' is not text"),
        ("a.jsonl", '{"text": "x", "label": "y"}', NUMBER, "got the label 'y'; expected a number"),
        ("a.txt", "x\n", PLAIN, "expected a file with one of the endings .csv, .tsv, .jsonl, .json"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, task: Classification, message: str) -> None:
    with pytest.raises(UserError, match=f"{name}.*{message}"):
        _read(tmp_path / name, text, task)
