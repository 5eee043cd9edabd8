"""GLUE's files, in fixtures of the official layout."""

from pathlib import Path

import pytest

from synthetic_attention.data.glue import GLUE, glue_file, read_glue
from synthetic_attention.tasks import UserError

MNLI = [
    *("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"),
    *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1", "gold_label"),
]


def _write(path: Path, *rows: list[str], mark: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(mark + "".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_cola_has_no_header(tmp_path: Path) -> None:
    path = _write(tmp_path / "train.tsv", ["x1", "1", "", "Birds sing."], ["x1", "0", "*", "Sing birds the."])
    one, two = read_glue(path, "cola").records
    assert (one.id, one.texts, one.label) == ("0", {"sentence": "Birds sing."}, 1)
    assert (two.id, two.label) == ("1", 0)
    test = _write(tmp_path / "test.tsv", ["index", "sentence"], ["0", "Fish swim."])
    (hidden,) = read_glue(test, "cola").records
    assert (hidden.id, hidden.texts["sentence"], hidden.label) == ("0", "Fish swim.", None)


def test_quotes_are_text_and_the_byte_order_mark_is_not(tmp_path: Path) -> None:
    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    path = _write(
        tmp_path / "train.tsv",
        header,
        ["1", "10", "11", '" It never closes , he said .', 'He said " it never closes .'],
        ["0", "12", "13", "Plain .", '"'],
        mark="\ufeff",
    )
    one, two = read_glue(path, "mrpc").records
    assert one.texts == {"sentence1": '" It never closes , he said .', "sentence2": 'He said " it never closes .'}
    assert (one.label, two.label, two.texts["sentence2"]) == (1, 0, '"')


def test_mnli_matched_and_mismatched(tmp_path: Path) -> None:
    parses = ["( p )", "( h )", "(ROOT p)", "(ROOT h)"]
    train = ["0", "31193", "31193n", "government", *parses, "The premise.", "The hypothesis.", "neutral", "neutral"]
    _write(tmp_path / "MNLI" / "train.tsv", MNLI, train)
    dev = [*MNLI[:-1], "label2", "label3", "label4", "label5", "gold_label"]
    row = [*train[:10], *["contradiction"] * 4, "neutral", "contradiction"]
    for part in ("matched", "mismatched"):
        _write(tmp_path / "MNLI" / f"dev_{part}.tsv", dev, row)
    _write(tmp_path / "MNLI" / "test_matched.tsv", MNLI[:10], train[:10])
    (example,) = read_glue(glue_file(tmp_path, "mnli", "train"), "mnli").records
    # The hypothesis comes first, as in T5's prompt.
    assert [*example.texts.items()] == [("hypothesis", "The hypothesis."), ("premise", "The premise.")]
    assert GLUE["mnli"].labels[1] == "neutral"
    assert example.label == 1
    for split in ("valid", "valid_mismatched"):
        (example,) = read_glue(glue_file(tmp_path, "mnli", split), "mnli").records
        assert example.label == 2
    assert glue_file(tmp_path / "MNLI", "mnli", "valid_mismatched").name == "dev_mismatched.tsv"
    (example,) = read_glue(glue_file(tmp_path, "mnli", "test"), "mnli").records
    assert (example.id, example.label) == ("0", None)


def test_the_official_qqp_has_malformed_lines_which_are_counted(tmp_path: Path) -> None:
    header = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
    _write(
        tmp_path / "QQP" / "train.tsv",
        header,
        ["7", "1", "2", "Why is ice cold?", "Why is ice so cold?", "1"],
        ["8", "3", "4", "A question that breaks"],
        ["9", "5", "6", "Who?", "What?", "0"],
    )
    parsed = read_glue(glue_file(tmp_path, "qqp", "train"), "qqp")
    assert parsed.skipped == 1
    assert [(example.id, example.label) for example in parsed.records] == [("7", 1), ("9", 0)]
    bare = _write(tmp_path / "pairs.tsv", ["Who ?", "What ?", "0"], ["Why ?", "How come ?", "1"])
    assert [example.label for example in read_glue(bare, "qqp").records] == [0, 1]


def test_labels_are_words_or_numbers(tmp_path: Path) -> None:
    header = ["index", "question", "sentence", "label"]
    rows = [["0", "Who?", "Ann did.", "entailment"], ["1", "Who?", "Nobody.", "not_entailment"]]
    examples = read_glue(_write(tmp_path / "qnli.tsv", header, *rows), "qnli").records
    assert [example.label for example in examples] == [0, 1]
    header = ["index", "sentence1", "sentence2", "label"]
    examples = read_glue(_write(tmp_path / "wnli.tsv", header, ["0", "It fell.", "The cup fell.", "1"]), "wnli").records
    assert GLUE["wnli"].labels[1] == "entailment"
    assert examples[0].label == 1


def test_scores_of_stsb_are_numbers_in_their_range(tmp_path: Path) -> None:
    header = [
        "index",
        "genre",
        "filename",
        "year",
        "old_index",
        "source1",
        "source2",
        "sentence1",
        "sentence2",
        "score",
    ]
    rows = [
        ["0", "g", "f", "2017", "1", "none", "none", "A dog.", "A hound.", score] for score in ("4.250", "0", "5.1")
    ]
    path = _write(tmp_path / "stsb.tsv", header, *rows)
    with pytest.raises(UserError, match=r"line 4: got score 5\.1; expected 0 … 5"):
        read_glue(path, "stsb")
    parsed = read_glue(path, "stsb", skip_bad_lines=True)
    assert ([example.label for example in parsed.records], parsed.skipped) == ([4.25, 0.0], 1)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "sst.tsv", ["sentence", "label"], ["fine .", "1"], ["a\tb", "1"], ["bad .", "2"])
    with pytest.raises(UserError, match=r"sst\.tsv, line 3: got 3 columns; expected 2: sentence, label"):
        read_glue(path, "sst2")
    assert read_glue(path, "sst2", skip_bad_lines=True).skipped == 2
    with pytest.raises(UserError, match="got the columns sentence, label; expected a header with sentence1, sentence2"):
        read_glue(path, "rte")
    with pytest.raises(UserError, match=r"line 2: got label '7'; expected one of: negative, positive, or 0 … 1"):
        read_glue(_write(tmp_path / "a.tsv", ["sentence", "label"], ["x", "7"]), "sst2")
    with pytest.raises(UserError, match="got unknown task of GLUE 'sst'; expected one of: cola, sst2"):
        read_glue(path, "sst")
    with pytest.raises(UserError, match=r"SST-2: no file dev\.tsv"):
        glue_file(tmp_path, "sst2", "valid")
    assert glue_file(path, "sst2", "valid") == path
