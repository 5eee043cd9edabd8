"""GLUE's and SuperGLUE's files, in fixtures of the official layout."""

import json
from pathlib import Path
from typing import Any

import pytest

from synthetic_attention.data.glue import GLUE, SUPERGLUE, glue_file, read_glue, read_superglue, superglue_file
from synthetic_attention.errors import UserError
from synthetic_attention.tasks.glue import SuperGlue

MNLI = [
    *("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"),
    *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1", "gold_label"),
]


def _tsv(path: Path, *rows: list[str], mark: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(mark + "".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_cola_has_no_header(tmp_path: Path) -> None:
    path = _tsv(tmp_path / "train.tsv", ["x1", "1", "", "Birds sing."], ["x1", "0", "*", "Sing birds the."])
    one, two = read_glue(path, "cola").records
    assert (one.id, one.texts, one.label) == ("0", {"sentence": "Birds sing."}, 1)
    assert (two.id, two.label) == ("1", 0)
    (hidden,) = read_glue(_tsv(tmp_path / "test.tsv", ["index", "sentence"], ["0", "Fish swim."]), "cola").records
    assert (hidden.id, hidden.texts["sentence"], hidden.label) == ("0", "Fish swim.", None)


def test_quotes_are_text_and_the_byte_order_mark_is_not(tmp_path: Path) -> None:
    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    rows = (
        ["1", "10", "11", '" It never closes , he said .', 'He said " it never closes .'],
        ["0", "12", "13", "P .", '"'],
    )
    one, two = read_glue(_tsv(tmp_path / "train.tsv", header, *rows, mark="\ufeff"), "mrpc").records
    assert one.texts == {"sentence1": '" It never closes , he said .', "sentence2": 'He said " it never closes .'}
    assert (one.label, two.label, two.texts["sentence2"]) == (1, 0, '"')


def test_mnli_matched_and_mismatched(tmp_path: Path) -> None:
    parses = ["( p )", "( h )", "(ROOT p)", "(ROOT h)"]
    train = ["0", "31193", "31193n", "government", *parses, "The premise.", "The hypothesis.", "neutral", "neutral"]
    _tsv(tmp_path / "MNLI" / "train.tsv", MNLI, train)
    dev = [*MNLI[:-1], "label2", "label3", "label4", "label5", "gold_label"]
    for part in ("matched", "mismatched"):
        row = [*train[:10], *["contradiction"] * 4, "neutral", "contradiction"]
        _tsv(tmp_path / "MNLI" / f"dev_{part}.tsv", dev, row)
    _tsv(tmp_path / "MNLI" / "test_matched.tsv", MNLI[:10], train[:10])
    (example,) = read_glue(glue_file(tmp_path, "mnli", "train"), "mnli").records
    # The hypothesis comes first, as in T5's prompt.
    assert [*example.texts.items()] == [("hypothesis", "The hypothesis."), ("premise", "The premise.")]
    assert GLUE["mnli"].labels[example.label] == "neutral"  # type: ignore[index]
    for split in ("valid", "valid_mismatched"):
        (example,) = read_glue(glue_file(tmp_path, "mnli", split), "mnli").records
        assert example.label == 2
    assert glue_file(tmp_path / "MNLI", "mnli", "valid_mismatched").name == "dev_mismatched.tsv"
    (example,) = read_glue(glue_file(tmp_path, "mnli", "test"), "mnli").records
    assert (example.id, example.label) == ("0", None)


def test_malformed_lines_of_qqp_are_counted(tmp_path: Path) -> None:
    header = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
    rows = (
        ["7", "1", "2", "Why?", "Why so?", "1"],
        ["8", "3", "4", "A question that breaks"],
        [*"956", "Who?", "What?", "0"],
    )
    _tsv(tmp_path / "QQP" / "train.tsv", header, *rows)
    parsed = read_glue(glue_file(tmp_path, "qqp", "train"), "qqp")
    assert ([(example.id, example.label) for example in parsed.records], parsed.skipped) == ([("7", 1), ("9", 0)], 1)
    bare = _tsv(tmp_path / "pairs.tsv", ["Who ?", "What ?", "0"], ["Why ?", "How come ?", "1"])
    assert [example.label for example in read_glue(bare, "qqp").records] == [0, 1]


def test_labels_are_words_numbers_or_scores(tmp_path: Path) -> None:
    header = ["index", "question", "sentence", "label"]
    rows = ["0", "Who?", "Ann did.", "entailment"], ["1", "Who?", "Nobody.", "not_entailment"]
    examples = read_glue(_tsv(tmp_path / "qnli.tsv", header, *rows), "qnli").records
    assert [example.label for example in examples] == [0, 1]
    header = ["index", "sentence1", "sentence2", "label"]
    (example,) = read_glue(_tsv(tmp_path / "wnli.tsv", header, ["0", "It fell.", "It fell.", "1"]), "wnli").records
    assert GLUE["wnli"].labels[example.label] == "entailment"  # type: ignore[index]
    header = ["index", "genre", "source1", "source2", "sentence1", "sentence2", "score"]
    scores = [["0", "g", "none", "none", "A dog.", "A hound.", score] for score in ("4.250", "0", "5.1")]
    path = _tsv(tmp_path / "stsb.tsv", header, *scores)
    with pytest.raises(UserError, match=r"line 4: .*5\.1.* 0 … 5"):
        read_glue(path, "stsb")
    parsed = read_glue(path, "stsb", skip_bad_lines=True)
    assert ([example.label for example in parsed.records], parsed.skipped) == ([4.25, 0.0], 1)


def test_errors_in_glue_files_are_named(tmp_path: Path) -> None:
    path = _tsv(tmp_path / "sst.tsv", ["sentence", "label"], ["fine .", "1"], ["a\tb", "1"], ["bad .", "2"])
    assert read_glue(path, "sst2", skip_bad_lines=True).skipped == 2
    with pytest.raises(UserError, match=r"sst\.tsv, line 3: got 3 columns; expected 2: sentence, label"):
        read_glue(path, "sst2")
    with pytest.raises(UserError, match=r"sentence, label.*sentence1, sentence2"):
        read_glue(path, "rte")
    with pytest.raises(UserError, match=r"line 2: got label '7'.*negative, positive"):
        read_glue(_tsv(tmp_path / "a.tsv", ["sentence", "label"], ["x", "7"]), "sst2")
    with pytest.raises(UserError, match=r"'sst'.*cola, sst2"):
        read_glue(path, "sst")
    with pytest.raises(UserError, match=r"SST-2: no file dev\.tsv"):
        glue_file(tmp_path, "sst2", "valid")
    assert glue_file(path, "sst2", "valid") == path


@pytest.mark.parametrize(
    ("task", "row", "label"),
    [
        ("boolq", {"question": "is tea hot", "passage": "Tea -- It is.", "idx": 3, "label": True}, 1),
        ("cb", {"premise": "He said so.", "hypothesis": "so", "label": "contradiction", "idx": 3}, 1),
        ("copa", {"premise": "P.", "choice1": "A.", "choice2": "B.", "question": "cause", "label": 1, "idx": 3}, 1),
        ("rte", {"premise": "P.", "hypothesis": "H.", "label": "not_entailment", "idx": 3}, 1),
        ("wic", {"word": "bank", "sentence1": "A.", "sentence2": "B.", "idx": 3, "label": False, "start1": 0}, 0),
    ],
)
def test_plain_superglue_tasks(tmp_path: Path, task: str, row: dict[str, Any], label: int) -> None:
    hidden = {name: value for name, value in row.items() if name != "label"}
    one, test = read_superglue(_jsonl(tmp_path / "a.jsonl", row, hidden), task).records
    assert (one.id, one.label, test.label) == ("3", label, None)
    assert [*one.texts.items()] == [(name, row[name]) for name in SUPERGLUE[task].texts]


def test_multirc_has_an_example_per_answer(tmp_path: Path) -> None:
    answers = [{"text": "Ann", "idx": 8, "label": 1}, {"text": "Bob", "idx": 9, "label": 0}]
    questions = [
        {"question": "Who?", "idx": 4, "answers": answers},
        {"question": "When?", "idx": 5, "answers": [{"text": "Now", "idx": 10, "label": 1}]},
    ]
    row = {"idx": 2, "version": 1.1, "passage": {"text": "Ann came now.", "questions": questions}}
    examples = read_superglue(_jsonl(tmp_path / "a.jsonl", row), "multirc").records
    expected = [("2.4.8", "2.4", 1), ("2.4.9", "2.4", 0), ("2.5.10", "2.5", 1)]
    assert [(example.id, example.group, example.label) for example in examples] == expected
    assert examples[1].texts == {"question": "Who?", "answer": "Bob", "paragraph": "Ann came now."}


def test_record_has_an_example_per_query(tmp_path: Path) -> None:
    spans = [{"start": 1, "end": 3}, {"start": 9, "end": 11}, {"start": 25, "end": 27}]
    answers = [{"start": 25, "end": 27, "text": "Ann"}, {"text": "Zoë"}, {"text": "Ann"}]
    query = {"query": "@placeholder went away", "answers": answers, "idx": 6}
    passage = {"text": " Zoë met Ann.\n@highlight\nAnn left", "entities": spans}
    row = {"source": "s", "passage": passage, "qas": [query], "idx": 1}
    (example,) = read_superglue(_jsonl(tmp_path / "a.jsonl", row), "record").records
    assert example.texts["entities"] == "Ann, Zoë"
    assert (example.id, example.label, example.answers) == ("1.6", None, ("Ann", "Zoë"))
    del query["answers"]
    assert read_superglue(_jsonl(tmp_path / "b.jsonl", row), "record").records[0].answers == ()


def _wsc(text: str, index: int, pronoun: str, referent: str = "The cat", label: bool = True) -> dict[str, Any]:
    target = {"span1_index": 0, "span1_text": referent, "span2_index": index, "span2_text": pronoun}
    return {"text": text, "target": target, "idx": 0, "label": label}


@pytest.mark.parametrize(
    ("text", "index", "marked"),
    [
        ("The cat ate because it was hungry.", 4, "The cat ate because *it* was hungry."),
        # The index is one too low, and the pronoun is followed by punctuation.
        ('The cat purred. "Feed it," said Ann.', 3, 'The cat purred. "Feed *it*," said Ann.'),
        # The nearest of two.
        ("it saw the dog and it ran", 5, "it saw the dog and *it* ran"),
    ],
)
def test_the_pronoun_of_wsc_is_marked(tmp_path: Path, text: str, index: int, marked: str) -> None:
    (example,) = read_superglue(_jsonl(tmp_path / "a.jsonl", _wsc(text, index, "it")), "wsc").records
    assert example.texts["text"] == marked


def test_the_referent_of_wsc_is_written_as_in_the_text(tmp_path: Path) -> None:
    row = _wsc("the old cat ate it.", 4, "it", "The old\ncat.", False)
    (example,) = read_superglue(_jsonl(tmp_path / "a.jsonl", row), "wsc").records
    assert (example.texts["referent"], example.label) == ("the old cat", 0)


@pytest.mark.parametrize(
    ("task", "row", "fact"),
    [
        ("cb", {"premise": "p", "idx": 1}, "'hypothesis'"),
        ("cb", {"premise": "p", "hypothesis": 3, "idx": 1}, "'hypothesis' has a int"),
        ("boolq", {"passage": "p", "question": "q", "idx": 1, "label": "yes"}, "'yes'"),
        ("wsc", _wsc("No pronoun here.", 1, "it"), "'it'"),
        ("wsc", {"text": "t", "idx": 1, "target": {}}, r"'target\.span2_text'"),
        ("multirc", {"idx": 1, "passage": {"text": "t"}}, r"'passage\.questions'"),
        ("multirc", {"idx": 1, "passage": {"text": "t", "questions": ["q"]}}, "'passage.questions' has a str"),
        ("record", {"idx": 1, "qas": [], "passage": {"text": "t", "entities": [{"start": 1}]}}, "entities.end"),
    ],
)
def test_malformed_superglue_lines_are_named(tmp_path: Path, task: str, row: dict[str, Any], fact: str) -> None:
    with pytest.raises(UserError, match=f"a.jsonl, line 1: .*{fact}"):
        read_superglue(_jsonl(tmp_path / "a.jsonl", row), task)


def test_a_malformed_line_is_skipped_as_a_whole(tmp_path: Path) -> None:
    answers = [{"text": "yes", "idx": 1, "label": 1}, {"text": "no", "idx": 2, "label": 2}]
    rows = [
        {"idx": idx, "passage": {"text": "t", "questions": [{"question": "q", "idx": 1, "answers": answers[:count]}]}}
        for idx, count in ((1, 2), (2, 1))
    ]
    parsed = read_superglue(_jsonl(tmp_path / "a.jsonl", *rows), "multirc", skip_bad_lines=True)
    assert ([example.id for example in parsed.records], parsed.skipped) == (["2.1.1"], 1)


def test_few_shot_files_replace_missing_superglue_files(tmp_path: Path) -> None:
    folder = tmp_path / "CB"
    folder.mkdir()
    for name in ("train32", "val", "test"):
        (folder / f"{name}.jsonl").touch()
    found = [superglue_file(tmp_path, "cb", split).name for split in ("train", "valid", "test")]
    assert found == ["train32.jsonl", "val.jsonl", "test.jsonl"]
    (folder / "train.jsonl").touch()
    assert superglue_file(folder, "cb", "train").name == "train.jsonl"
    (folder / "val.jsonl").rename(folder / "dev32.jsonl")
    # train.jsonl contains dev32.jsonl.
    for read in (lambda: superglue_file(tmp_path, "cb", "valid"), lambda: SuperGlue().read(tmp_path, "valid")):
        with pytest.raises(UserError, match="dev32"):
            read()
    (folder / "train.jsonl").unlink()
    assert superglue_file(tmp_path, "cb", "valid").name == "dev32.jsonl"
    with pytest.raises(UserError, match=r"COPA: no file train\.jsonl \| train32\.jsonl"):
        superglue_file(tmp_path, "copa", "train")
    with pytest.raises(UserError, match=r"'axb'.*boolq"):
        superglue_file(tmp_path, "axb", "test")
