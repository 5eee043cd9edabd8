"""Classification: options, files, sequences, scores, predictions."""

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from synthetic_attention.data.batching import Share
from synthetic_attention.data.classes import Classes
from synthetic_attention.data.classification import LabeledText, guess_columns
from synthetic_attention.data.text_examples import TextExamples, join_sides, text_tokenizer
from synthetic_attention.models import SynthesizerConfig, SynthesizerForSequenceClassification
from synthetic_attention.tasks import UserError
from synthetic_attention.tasks.classification import Classification
from synthetic_attention.tasks.classified_texts import ClassifiedTexts, TextReader
from tasks.benchmark_files import write_glue

ROWS = [("3", "Rain, again", "It rains."), ("1", "Tea", 'The "tea" is hot.'), ("2", "Wind", "It blows.")]


@pytest.fixture
def metrics() -> Any:
    """scikit-learn's; what needs them is not tested where the extra "glue" is not installed."""
    pytest.importorskip("scipy.stats", reason="scipy is not installed")
    return pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


def write_csv(
    path: Path, rows: Sequence[Sequence[str]] = ROWS, header: Sequence[str] = ("Class Index", "Title")
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [*header, "Description"][: len(rows[0])]
    quoted = [",".join('"' + value.replace('"', '""') + '"' for value in row) for row in rows]
    path.write_text("\n".join([",".join(names), *quoted]) + "\n", encoding="utf-8")
    return path


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


PAIRS = {"text": 1, "text_pair": 2, "label": 3, "held_out": 0.3}


def test_news_is_read_by_its_header(news: Path) -> None:
    task = Classification.from_options({"classes": ["World", "Sports", "Business"]})
    train, valid = task.read(news, "train"), task.read(news, "valid")
    assert (train.name, len(train), len(valid), train.sides) == ("train", 12, 3, 1)
    assert valid.records[1].texts == ('Tea The "tea" is hot.',)
    assert valid.classes == train.classes == Classes(("1", "2", "3"), ("World", "Sports", "Business"))
    assert valid.indices(valid.known_classes()) == [2, 0, 1]
    changes = task.config_changes(train, task.tokenizer(train, 300, 64))
    assert changes["id2label"] == {0: "World", 1: "Sports", 2: "Business"}
    assert changes["label2id"]["Business"] == 2
    assert (changes["problem_type"], changes["type_vocab_size"]) == ("single_label_classification", 0)
    with pytest.raises(UserError, match="got classes a, b, a; expected a name of its own for each"):
        Classification(classes=["a", "b", "a"])
    with pytest.raises(UserError, match="got 2 class names for the 3 classes 1, 2, 3"):
        Classification(classes=["a", "b"]).read(news, "train")
    write_csv(news / "valid.csv", [("4", "a", "b")])
    with pytest.raises(UserError, match=r"valid\.csv, line 2: got class '4'; expected one of: 1, 2, 3"):
        task.read(news, "valid")


def test_packed_json_lines_with_breaks(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        rows = [{"id": n, "label": n % 2, "rating": 3, "text": f"good<br /><br />film {n}"} for n in range(4)]
        with gzip.open(tmp_path / f"{split}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
    valid = Classification(classes=["bad", "good"]).read(tmp_path, "valid")
    assert valid.records[3] == LabeledText("3", ("good film 3",), "1")
    assert "<br />" in Classification(breaks=False).read(tmp_path, "valid").records[0].texts[0]


def test_a_part_of_the_training_file_is_held_out_by_first_texts(pairs: Path) -> None:
    task = Classification.from_options({**PAIRS, "classes": ["yes", "maybe", "no"]})
    train, valid = task.read(pairs, "train"), task.read(pairs, "valid")
    assert len(train) + len(valid) == 60
    assert 5 < len(valid) < 35
    assert {row.texts[0] for row in train.records}.isdisjoint(row.texts[0] for row in valid.records)
    assert (train.sides, train.classes) == (2, valid.classes)
    assert valid.classes == Classes(("0", "1", "2"), ("yes", "maybe", "no"))
    assert task.read(pairs, "valid").fingerprint() == valid.fingerprint() != train.fingerprint()
    with pytest.raises(UserError, match="no file valid"):
        Classification.from_options({**PAIRS, "held_out": 0.0}).read(pairs, "valid")


def test_labels_can_be_ignored(tmp_path: Path) -> None:
    header = "gold_label\tsentence1\tsentence2"
    (tmp_path / "train.tsv").write_text(f"{header}\nyes\ta\tb\n-\ta\tc\nno\ta\td\n", encoding="utf-8")
    (tmp_path / "dev.tsv").write_text(f"{header}\n-\ta\tc\nno\ta\td\n", encoding="utf-8")
    task = Classification(ignored_labels=["-"])
    assert task.read(tmp_path, "train").classes == Classes(("no", "yes"), ("no", "yes"))
    assert [row.label for row in task.read(tmp_path, "valid").records] == ["no"]
    assert Classification().read(tmp_path, "train").known_classes().values == ("-", "no", "yes")


def test_columns_are_guessed_from_known_names_only(tmp_path: Path) -> None:
    def guess(*names: str) -> Any:
        path = tmp_path / "train.tsv"
        path.write_text("\t".join(names) + "\n", encoding="utf-8")
        return guess_columns(path)

    news = guess("Class Index", "Title", "Description")
    assert (news.text, news.pair, news.label) == (("Title", "Description"), (), "Class Index")
    snli = guess("pairID", "sentence1", "sentence2", "gold_label")
    assert (snli.text, snli.pair, snli.label) == (("sentence1",), ("sentence2",), "gold_label")
    assert guess("text", "text_pair", "score").pair == ("text_pair",)
    for names in (("a", "b", "1"), ("text", "words"), ("text", "label", "category"), ("label",)):
        with pytest.raises(UserError, match=f"which columns are text and class is not clear from {', '.join(names)};"):
            guess(*names)
    (tmp_path / "train.jsonl").write_text('{"label": 1, "review": "a"}\n', encoding="utf-8")
    assert guess_columns(tmp_path / "train.jsonl").text == ("review",)
    (tmp_path / "train.jsonl").write_text("[1]\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.jsonl, line 1: got a JSON list"):
        guess_columns(tmp_path / "train.jsonl")


def _tokenizer(task: Classification, split: ClassifiedTexts, maximum: int = 64) -> PreTrainedTokenizerFast:
    return task.tokenizer(split, 300, maximum)


def test_sequences_are_those_of_the_tokenizer(pairs: Path, tmp_path: Path) -> None:
    task = Classification.from_options(PAIRS)
    split = task.read(pairs, "train")
    _tokenizer(task, split).save_pretrained(tmp_path / "saved")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")
    examples = task.examples(split, tokenizer, 64, training=True)
    batch = task.collate([examples[index] for index in (0, 5, 9)], 0)
    assert batch["input_ids"].shape == batch["token_type_ids"].shape == batch["attention_mask"].shape
    for row, index in enumerate((0, 5, 9)):
        expected = tokenizer(*split.records[index].texts)
        real = batch["attention_mask"][row].bool()
        assert batch["input_ids"][row][real].tolist() == expected["input_ids"]
        assert batch["token_type_ids"][row][real].tolist() == expected["token_type_ids"]
        assert not batch["token_type_ids"][row][~real].any()
    assert batch["labels"].tolist() == [int(split.records[index].label) for index in (0, 5, 9)]
    assert examples.lengths().shape == (len(split), 1)
    single = join_sides(tokenizer, [("text 1",)])
    assert single[0][0].tolist() == tokenizer("text 1")["input_ids"]
    assert single[1] == [len(single[0][0])]


@pytest.mark.parametrize(
    ("lengths", "maximum", "expected"),
    [((9, 5), 10, (5, 5)), ((9, 2), 8, (6, 2)), ((3, 9), 8, (3, 5)), ((9, 9), 9, (5, 4)), ((4, 4), 8, (4, 4))],
)
def test_the_longer_side_of_a_pair_is_cut(lengths: tuple[int, int], maximum: int, expected: tuple[int, int]) -> None:
    task = Classification()
    records = [LabeledText("0", ("a b c d e f g", "h i j k l m n"), "x")]
    tokenizer = _tokenizer(task, ClassifiedTexts("train", records, None))
    # Letters are tokens here; the first side has two tokens round them, the second one.
    sides = ("a" * (lengths[0] - 2), "b" * (lengths[1] - 1))
    (ids,), (first,), over = join_sides(tokenizer, [sides], maximum)
    assert (first, len(ids) - first) == expected
    assert over == (sum(lengths) > maximum)
    assert (ids[0], ids[first - 1], ids[-1]) == (1, 2, 2)


def test_long_texts_are_refused_dropped_or_cut(news: Path) -> None:
    rows = [("1", "a", "b"), ("2", "a", "b " * 99), ("3", "a", "c")]
    task = Classification()
    write_csv(news / "train.csv", rows)
    split = task.read(news, "train")
    tokenizer = _tokenizer(task, split)
    with pytest.raises(UserError, match="train texts: 1 of 3 lines are longer than the maximum of 12 tokens"):
        task.examples(split, tokenizer, 12)
    dropped = task.examples(split, tokenizer, 12, "drop")
    assert (dropped.rows, dropped.labels, dropped.dropped, dropped.truncated) == ([0, 2], [0, 2], 1, 0)
    cut = task.examples(split, tokenizer, 12, "truncate")
    assert (len(cut), cut.truncated, cut.lengths().max()) == (3, 1, 12)
    with pytest.raises(UserError, match="no text is left of 3"):
        task.examples(split, tokenizer, 2, "drop")


def _model(task: Classification, split: ClassifiedTexts, tokenizer: PreTrainedTokenizerFast) -> Any:
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_layers": 1, "max_position_embeddings": 64}
    config = SynthesizerConfig(**sizes, **task.config_changes(split, tokenizer))  # type: ignore[arg-type]
    return task.build(config).eval()


def test_evaluation_of_classes(news: Path, metrics: Any) -> None:
    task = Classification(classes=["World", "Sports", "Business"])
    train, valid = task.read(news, "train"), task.read(news, "valid")
    tokenizer = _tokenizer(task, train)
    model = _model(task, train, tokenizer)
    found = task.evaluate(model, tokenizer, valid, None)
    lines = [json.loads(line) for line in found.predictions.splitlines()]
    assert [(line["id"], line["gold"]) for line in lines] == [("2", "Business"), ("3", "World"), ("4", "Sports")]
    golds, guesses = [line["gold"] for line in lines], [line["predicted"] for line in lines]
    assert found.scores["accuracy"] == pytest.approx(100 * metrics.accuracy_score(golds, guesses))
    expected = metrics.f1_score(
        golds, guesses, average="macro", zero_division=0, labels=["World", "Sports", "Business"]
    )
    assert found.scores["macro_f1"] == pytest.approx(100 * expected)
    for line, record in zip(lines, valid.records, strict=True):
        logits = model(**tokenizer(record.texts[0], return_tensors="pt")).logits
        assert line["score"] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-5)
        assert line["predicted"] == model.config.id2label[int(logits.argmax())]
    examples = task.examples(valid, tokenizer, 64)
    assert task.validate(model, tokenizer, valid, examples, 0.0, _share()) == found.scores
    assert (found.examples, found.answered, found.truncated) == (3, 3, 0)


def _share() -> Any:
    from synthetic_attention.data.batching import Share

    return Share(batch_tokens=20)


def test_classes_of_a_model_are_found_without_the_training_file(news: Path, metrics: Any) -> None:
    task = Classification(classes=["World", "Sports", "Business"])
    train = task.read(news, "train")
    tokenizer = _tokenizer(task, train)
    model = _model(task, train, tokenizer)
    expected = task.evaluate(model, tokenizer, task.read(news, "valid"), None)
    (news / "train.csv").unlink()
    alone = task.read(news, "valid")
    assert alone.classes is None
    assert task.evaluate(model, tokenizer, alone, None).predictions == expected.predictions
    with pytest.raises(UserError, match="the classes are those of the training file"):
        task.examples(alone, tokenizer, 64)
    write_csv(news / "valid.csv", [("World", "a", "b"), ("Sports", "a", "c")])
    named = task.evaluate(model, tokenizer, task.read(news, "valid"), None)
    assert [json.loads(line)["gold"] for line in named.predictions.splitlines()] == ["World", "Sports"]
    write_csv(news / "valid.csv", [("7", "a", "b"), ("8", "a", "c")])
    with pytest.raises(UserError, match="got the classes 7, 8; expected those of the model, World, Sports, Business"):
        task.evaluate(model, tokenizer, task.read(news, "valid"), None)
    write_csv(news / "train.csv", [("7", "a", "b"), ("8", "a", "c")])
    with pytest.raises(UserError, match="the classes of the data are 7, 8, those of the model World, Sports, Business"):
        task.evaluate(model, tokenizer, Classification().read(news, "valid"), None)


def test_values_that_the_model_does_not_know_are_not_guessed_at(news: Path, metrics: Any) -> None:
    """The names of classes that were read from files say nothing of numbers in other files."""
    write_csv(news / "train.csv", [("yes", "a", "b"), ("maybe", "a", "c"), ("no", "a", "d")] * 4)
    task = Classification()
    train = task.read(news, "train")
    tokenizer = _tokenizer(task, train)
    model = _model(task, train, tokenizer)
    (news / "train.csv").unlink()
    with pytest.raises(UserError, match="got the classes 1, 2, 3; expected those of the model, maybe, no, yes, or the"):
        task.evaluate(model, tokenizer, task.read(news, "valid"), None)


@pytest.mark.parametrize("last", ["", '""', "-1", None])
def test_test_files_may_lack_the_class(news: Path, metrics: Any, last: str | None) -> None:
    task = Classification()
    train = task.read(news, "train")
    tokenizer = _tokenizer(task, train)
    rows = ["a,b,{}", "c,d,{}"]
    header = "Title,Description,Class Index" if last is not None else "Title,Description"
    lines = [header, *(row.format(last) if last is not None else row.removesuffix(",{}") for row in rows)]
    (news / "test.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    split = task.read(news, "test")
    assert [record.label for record in split.records] == ["", ""]
    assert not task.can_score(split)
    found = task.evaluate(_model(task, train, tokenizer), tokenizer, split, None)
    lines = found.predictions.splitlines()
    assert (found.scores, found.examples, [json.loads(line)["gold"] for line in lines]) == ({}, 0, [None, None])
    (news / "test.csv").rename(news / "valid.csv")
    refused = {None: "no column 'Class Index'", "-1": "line 2: got class '-1'; expected one of: 1, 2, 3"}
    message = refused.get(last, "line 2: field 'Class Index' is blank")
    with pytest.raises(UserError, match=rf"valid\.csv.*{message}"):
        Classification(text=["Title", "Description"], label="Class Index").read(news, "valid")


class _Rows(list[dict[str, Any]]):
    @property
    def column_names(self) -> list[str]:
        return list(self[0])


class _Hub:
    """A `datasets` of one data set."""

    def __init__(self, **splits: list[dict[str, Any]]) -> None:
        self.splits = splits

    def load_dataset(self, _name: str, _subset: str | None, *, split: str, **_: Any) -> Any:
        if split not in self.splits:
            raise ValueError(f"Unknown split {split!r}. Should be one of {list(self.splits)}.")
        rows = self.splits[split]

        return _Rows(rows)


def test_data_sets_of_the_hub_have_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    train: list[dict[str, Any]] = [{"text": f"tea {n}", "label": n % 2} for n in range(4)]
    gaps = [{"text": None, "label": 1}, {"text": "wind", "label": None}, {"text": " ", "label": 0}]
    test = [{"text": "tea", "label": -1}, {"text": "wind", "label": None}, {"text": "<br /> ", "label": 1}]
    hub, data = _Hub(train=[*train, *gaps], validation=train, test=test), Path("hub:owner/name")
    monkeypatch.setitem(sys.modules, "datasets", hub)
    split = Classification().read(data, "train")
    assert (len(split), split.skipped, split.known_classes().values) == (4, 3, ("0", "1"))
    hidden = Classification().read(data, "test")
    assert ([record.label for record in hidden.records], hidden.skipped) == (["", ""], 1)
    # In what is trained and validated on, −1 is a class like others.
    hub.splits["validation"] = [{"text": "tea", "label": -1}]
    valid = Classification().read(data, "valid")
    with pytest.raises(UserError, match=r"valid: got class '-1'; expected one of: 0, 1; .*ignored_labels"):
        Classification().examples(valid, text_tokenizer(["tea"], 270, 9), 9)
    hub.splits["test"] = [{"text": "tea"}, {"text": "wind"}]
    assert [record.label for record in Classification().read(data, "test").records] == ["", ""]
    hub.splits["odd"] = [{"text": ["rain"], "label": 0}]
    with pytest.raises(
        UserError, match=r"hub:.*, split odd, row 0: field 'text' is no text; .* such rows out with skip"
    ):
        Classification().read(data, "odd")
    with pytest.raises(UserError, match="split odd: no record is left; 1 rows are malformed"):
        Classification(skip_bad_lines=True).read(data, "odd")
    del hub.splits["train"]
    assert Classification().read(data, "test").classes is None
    hub.splits["test"] = [{"text": "tea", "label": -1}] * 2
    for task in (Classification(), Classification(regression=True)):
        assert [record.label for record in task.read(data, "test").records] == ["", ""]
    with pytest.raises(UserError, match="Unknown split 'train'"):
        Classification().read(data, "train")


def test_files_of_any_name_have_the_format_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("tea\t1\nrain\t0\n", encoding="utf-8")
    task = Classification(text=1, label=2, format="tsv")
    assert len(task.read(tmp_path, "train")) == 2
    # What has a known ending comes first.
    (tmp_path / "valid-notes.md").write_text("none", encoding="utf-8")
    (tmp_path / "dev.csv").write_text("wind\t1\n", encoding="utf-8")
    assert [record.texts for record in task.read(tmp_path, "valid").records] == [("wind",)]
    with pytest.raises(UserError, match=r"no file test\{\.csv .* \.json\}; the files there are: dev\.csv"):
        task.read(tmp_path, "test")


def test_several_training_files_are_not_taken_for_none(news: Path) -> None:
    (news / "train.csv").rename(news / "train_a.csv")
    write_csv(news / "train_b.csv")
    with pytest.raises(UserError, match=r"several files are split 'train': train_a\.csv, train_b\.csv"):
        Classification().read(news, "valid")


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (
            ["text,label", *(f"tea,{n / 2}" for n in range(30))],
            {},
            r"train\.csv: got the classes 0.0, 0.5, .*\(20 more\)",
        ),
        (["text,label", *(f"{'tea ' * 99},w{n:02}" for n in range(30))], {"classes": ["a", "b"]}, "got 2 class names"),
        (["text,label", f"tea,{'x' * 999}"], {}, "got x{60}… as the only class; .* --set label=…"),
        ([",,"], {}, r"train\.csv: the file is empty but for blank rows"),
        (["text,label,text", "a,b,c"], {}, r"train\.csv: 2 columns are called 'text'; pass its number"),
    ],
)
def test_messages_are_short_and_say_what_to_do(
    tmp_path: Path, lines: list[str], options: dict[str, Any], message: str
) -> None:
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        Classification(**options).read(tmp_path, "train")
    assert len(str(caught.value)) < 700 + len(str(tmp_path))


def test_lines_are_read_as_files_are(news: Path) -> None:
    task = Classification()
    train = task.read(news, "train")
    tokenizer = _tokenizer(task, train)
    seen: list[Any] = []
    model = _model(task, train, tokenizer)
    model.register_forward_pre_hook(lambda _, __, inputs: seen.append(inputs["input_ids"].tolist()), with_kwargs=True)
    task.generate(model, tokenizer, ["Rain again", "  Rain<br /><br />again "], None)
    ids = [row for batch in seen for row in batch]
    assert ids[0] == ids[1]


def test_regression(tmp_path: Path, metrics: Any) -> None:
    stats = pytest.importorskip("scipy.stats")
    for name in ("train", "valid"):
        rows = [{"text": "tea " * n, "score": n * 0.5} for n in range(1, 9)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = Classification(regression=True)
    assert (task.selects_by, Classification().selects_by) == ("pearson", "accuracy")
    split = task.read(tmp_path, "train")
    tokenizer = _tokenizer(task, split)
    assert task.config_changes(split, tokenizer)["problem_type"] == "regression"
    model = _model(task, split, tokenizer)
    batch = task.collate([task.examples(split, tokenizer, 64)[index] for index in (0, 3)], 0)
    assert (batch["labels"].dtype, batch["labels"].tolist()) == (torch.float32, [0.5, 2.0])
    assert "token_type_ids" not in batch
    found = task.evaluate(model, tokenizer, task.read(tmp_path, "valid"), None)
    lines = [json.loads(line) for line in found.predictions.splitlines()]
    golds, guesses = [line["gold"] for line in lines], [line["predicted"] for line in lines]
    assert found.scores["pearson"] == pytest.approx(100 * stats.pearsonr(golds, guesses).statistic, abs=0.1)
    assert {line["score"] for line in lines} == {None}
    assert task.generate(model, tokenizer, ["tea", ""], None)[0] == [str(guesses[0]), ""]
    (tmp_path / "valid.jsonl").write_text('{"text": "a", "score": "good"}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"valid\.jsonl, line 1: got the label 'good'; expected a number; put"):
        task.read(tmp_path, "valid")


def test_tasks_of_glue(tmp_path: Path, metrics: Any) -> None:
    write_glue(tmp_path)
    sst2 = Classification(glue_task="sst2")
    split = sst2.read(tmp_path, "train")
    assert split.classes == Classes(("negative", "positive"), ("negative", "positive"))
    assert [row.label for row in split.records[:2]] == ["negative", "positive"]
    assert len(Classification(glue_task="sst2").read(tmp_path / "SST-2", "valid")) == 6
    mnli = Classification(glue_task="mnli")
    assert (len(mnli.read(tmp_path, "valid")), len(mnli.read(tmp_path, "valid_mismatched"))) == (6, 7)
    assert mnli.read(tmp_path, "valid").sides == 2
    for name, scores in (
        ("stsb", {"pearson", "spearman"}),
        ("cola", {"accuracy", "macro_f1", "matthews"}),
        ("mrpc", {"accuracy", "macro_f1", "f1"}),
    ):
        task = Classification(glue_task=name)
        train = task.read(tmp_path, "train")
        tokenizer = _tokenizer(task, train)
        model = _model(task, train, tokenizer)
        valid = task.read(tmp_path, "valid")
        found = task.validate(model, tokenizer, valid, task.examples(valid, tokenizer, 64), 0.0, _share())
        assert {*found} == scores
        assert task.selects_by in found
    # One file is not both splits, unless some of it is held out.
    file = tmp_path / "SST-2" / "train.tsv"
    with pytest.raises(UserError, match=r"train\.tsv: a file, and training wants two"):
        sst2.read(file, "train")
    assert len(sst2.read(file, "valid")) == len(split)
    halves = [Classification(glue_task="sst2", held_out=0.5).read(file, part) for part in ("train", "valid")]
    ids = [[record.id for record in half.records] for half in halves]
    assert [half.name for half in halves] == ["train", "valid"]
    assert sorted(ids[0] + ids[1]) == sorted(record.id for record in split.records)
    assert ids[0]
    assert ids[1]
    with pytest.raises(UserError, match="got split 'test' of one file, which is trained on; expected --split valid"):
        Classification(glue_task="sst2", held_out=0.5).read(file, "test")
    # Test files without labels are predicted, and not scored.
    (tmp_path / "MRPC" / "test.tsv").write_text("index\t#1 String\t#2 String\n0\ta\tb\n", encoding="utf-8")
    assert (task.can_score(task.read(tmp_path, "test")), task.can_score(valid)) == (False, True)
    hidden = task.evaluate(model, tokenizer, task.read(tmp_path, "test"), None)
    assert (hidden.scores, hidden.examples, hidden.answered) == ({}, 0, 1)
    assert json.loads(hidden.predictions)["gold"] is None


def test_a_line_gives_its_class(pairs: Path, news: Path) -> None:
    task = Classification.from_options(PAIRS)
    split = task.read(pairs, "train")
    tokenizer = _tokenizer(task, split)
    model = _model(task, split, tokenizer)
    lines = ["text 1 here\tother", "", "text\tmore"]
    found, over = task.generate(model, tokenizer, lines, None)
    expected = [
        model.config.id2label[int(model(**tokenizer(*line.split("\t"), return_tensors="pt")).logits.argmax())]
        for line in lines
        if line
    ]
    assert (found, over) == ([expected[0], "", expected[1]], 0)
    for line in ("text", "a\tb\tc", "a\t "):
        with pytest.raises(UserError, match="input, line 8: expected a pair of texts with a tab between them"):
            task.generate(model, tokenizer, ["a\tb", line], None, first_line=7)
    long = ["a\t" + "b" * 99]
    with pytest.raises(UserError, match=r"input: 1 of 1 lines are longer .*; pass --on-long truncate"):
        task.generate(model, tokenizer, long, None)
    assert task.generate(model, tokenizer, long, None, truncate=True)[1] == 1


def test_options_that_cannot_be_are_refused() -> None:
    for options, message in (
        ({"held_out": 1.0}, "got held_out=1.0; expected 0 ≤ held_out < 1"),
        ({"glue_task": "cb"}, "got glue_task='cb'; expected one of: cola"),
        ({"text": "a"}, "got one of the columns text and label; expected both"),
        ({"label": 2}, "got one of the columns text and label"),
        ({"text_pair": 2}, "got one of the columns"),
        ({"text": "a", "label": 2, "header": False}, "of a file without header; expected numbers from 1"),
        ({"glue_task": "sst2", "classes": ["a", "b"]}, "got glue_task with options of other files"),
        ({"glue_task": "sst2", "header": True}, "got glue_task with options of other files"),
        ({"glue_task": "sst2", "format": "tsv"}, "got glue_task with options of other files"),
        ({"revision": 2.0}, r"got revision=2.0; expected str or null; a text in quotes is one: --set 'revision=\"…\"'"),
        ({"classes": [True, False]}, r"got classes=.*True, False.*: --set 'classes=\[\"…\", \"…\"\]'"),
        ({"regression": True, "classes": ["a", "b"]}, "got regression and classes"),
        ({"format": "xml"}, "got format='xml'; expected one of: csv, tsv, jsonl or null"),
    ):
        with pytest.raises(UserError, match=message):
            Classification.from_options(options)
    assert isinstance(Classification().reader(), TextReader)


def test_premises_of_mnli_are_held_out_as_a_whole(tmp_path: Path) -> None:
    write_glue(tmp_path, train=3, tasks=("mnli",))
    path = tmp_path / "MNLI" / "train.tsv"
    header, row, *_ = path.read_text(encoding="utf-8").splitlines()
    columns, cells = header.split("\t"), row.split("\t")
    one, two = columns.index("sentence1"), columns.index("sentence2")
    lines = [header]
    for premise in range(30):
        for hypothesis in range(3):
            cells[one], cells[two] = f"premise {premise}", f"hypothesis {premise} {hypothesis}"
            lines.append("\t".join(cells))
    path.write_text("\n".join(lines), encoding="utf-8")
    parts = [Classification(glue_task="mnli", held_out=0.5).read(path, part).records for part in ("train", "valid")]
    assert sum(map(len, parts)) == 90
    premises = [{next(text for text in record.texts if "premise" in text) for record in part} for part in parts]
    assert premises[0]
    assert premises[1]
    assert not premises[0] & premises[1]


def test_a_number_is_no_class_that_is_left_out() -> None:
    config = SynthesizerConfig(
        vocab_size=300, d_model=8, num_heads=2, d_ff=8, num_layers=1, max_position_embeddings=9, num_labels=1
    )
    task = Classification(regression=True)
    model = SynthesizerForSequenceClassification(config)
    rows = [np.array([1, 5, 2], dtype=np.int32)] * 2
    examples = TextExamples(rows, [3, 3], [-100.0, 0.0], [0, 1])
    output = model.eval()(torch.tensor([[1, 5, 2]])).logits.item()
    assert task.loss(model, examples, Share()) == pytest.approx(((output + 100) ** 2 + output**2) / 2, rel=1e-5)
