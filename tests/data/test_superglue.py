"""SuperGLUE's files, in fixtures of the official layout."""

import json
from pathlib import Path
from typing import Any

import pytest

from synthetic_attention.data.superglue import SUPERGLUE, read_superglue, superglue_file
from synthetic_attention.tasks import UserError
from synthetic_attention.tasks.superglue import SuperGlue


def _write(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("task", "row", "label"),
    [
        ("boolq", {"question": "is tea hot", "passage": "Tea -- It is.", "idx": 3, "label": True}, 1),
        ("cb", {"premise": "He said so.", "hypothesis": "so", "label": "contradiction", "idx": 3}, 1),
        (
            "copa",
            {"premise": "P.", "choice1": "A.", "choice2": "B.", "question": "cause", "label": 1, "idx": 3},
            1,
        ),
        ("rte", {"premise": "P.", "hypothesis": "H.", "label": "not_entailment", "idx": 3}, 1),
        (
            "wic",
            {"word": "bank", "sentence1": "A.", "sentence2": "B.", "idx": 3, "label": False, "start1": 0, "end1": 1},
            0,
        ),
    ],
)
def test_plain_tasks(tmp_path: Path, task: str, row: dict[str, Any], label: int) -> None:
    hidden = {name: value for name, value in row.items() if name != "label"}
    one, test = read_superglue(_write(tmp_path / "a.jsonl", row, hidden), task).records
    assert (one.id, one.label, test.label) == ("3", label, None)
    assert one.texts == {name: row[name] for name in SUPERGLUE[task].texts}
    assert tuple(one.texts) == SUPERGLUE[task].texts


def test_multirc_is_an_example_for_each_answer(tmp_path: Path) -> None:
    questions = [
        {
            "question": "Who?",
            "idx": 4,
            "answers": [{"text": "Ann", "idx": 8, "label": 1}, {"text": "Bob", "idx": 9, "label": 0}],
        },
        {"question": "When?", "idx": 5, "answers": [{"text": "Now", "idx": 10, "label": 1}]},
    ]
    row = {"idx": 2, "version": 1.1, "passage": {"text": "Ann came now.", "questions": questions}}
    examples = read_superglue(_write(tmp_path / "a.jsonl", row), "multirc").records
    assert [(example.id, example.group, example.label) for example in examples] == [
        ("2.4.8", "2.4", 1),
        ("2.4.9", "2.4", 0),
        ("2.5.10", "2.5", 1),
    ]
    assert examples[1].texts == {"question": "Who?", "answer": "Bob", "paragraph": "Ann came now."}


def test_record_is_an_example_for_each_query(tmp_path: Path) -> None:
    text = " Zoë met Ann.\n@highlight\nAnn left"
    spans = [{"start": 1, "end": 3}, {"start": 9, "end": 11}, {"start": 25, "end": 27}]
    query = {
        "query": "@placeholder went away",
        "answers": [
            {"start": 25, "end": 27, "text": "Ann"},
            {"start": 1, "end": 3, "text": "Zoë"},
            {"start": 9, "end": 11, "text": "Ann"},
        ],
        "idx": 6,
    }
    row = {"source": "s", "passage": {"text": text, "entities": spans}, "qas": [query], "idx": 1}
    (example,) = read_superglue(_write(tmp_path / "a.jsonl", row), "record").records
    assert example.texts["entities"] == "Ann, Zoë"
    assert example.answers == ("Ann", "Zoë")
    assert (example.id, example.label) == ("1.6", None)
    del query["answers"]
    (hidden,) = read_superglue(_write(tmp_path / "b.jsonl", row), "record").records
    assert hidden.answers == ()


def _wsc(text: str, index: int, pronoun: str, referent: str = "The cat", label: bool = True) -> dict[str, Any]:
    target = {"span1_index": 0, "span1_text": referent, "span2_index": index, "span2_text": pronoun}
    return {"text": text, "target": target, "idx": 0, "label": label}


@pytest.mark.parametrize(
    ("text", "index", "marked"),
    [
        ("The cat ate because it was hungry.", 4, "The cat ate because *it* was hungry."),
        # The index counts one too few, and the pronoun is glued to its punctuation.
        ('The cat purred. "Feed it," said Ann.', 3, 'The cat purred. "Feed *it*," said Ann.'),
        # The nearest of two.
        ("it saw the dog and it ran", 5, "it saw the dog and *it* ran"),
        ("The cat ran; it did", 3, "The cat ran; *it* did"),
    ],
)
def test_the_pronoun_of_wsc_is_marked(tmp_path: Path, text: str, index: int, marked: str) -> None:
    (example,) = read_superglue(_write(tmp_path / "a.jsonl", _wsc(text, index, "it")), "wsc").records
    assert example.texts["text"] == marked


def test_the_referent_of_wsc_is_as_the_text_has_it(tmp_path: Path) -> None:
    (example,) = read_superglue(
        _write(tmp_path / "a.jsonl", _wsc("the old cat ate it.", 4, "it", "The old\ncat.", False)), "wsc"
    ).records
    assert (example.texts["referent"], example.label) == ("the old cat", 0)


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ("cb", {"premise": "p", "idx": 1}, "no field 'hypothesis'"),
        ("cb", {"premise": "p", "hypothesis": 3, "idx": 1}, "field 'hypothesis' has a int; expected str"),
        (
            "cb",
            {"premise": "p", "hypothesis": "h", "idx": 1, "label": "yes"},
            "got label 'yes'; expected one of: entail",
        ),
        ("boolq", {"passage": "p", "question": "q", "idx": 1, "label": "yes"}, "got label 'yes'"),
        ("wsc", _wsc("No pronoun here.", 1, "it"), "the text lacks the pronoun 'it'"),
        ("wsc", {"text": "t", "idx": 1, "target": {}}, r"no field 'target\.span2_text'"),
        ("multirc", {"idx": 1, "passage": {"text": "t"}}, r"no field 'passage\.questions'"),
        ("multirc", {"idx": 1, "passage": {"text": "t", "questions": ["q"]}}, "'passage.questions' has a str"),
        ("record", {"idx": 1, "qas": [], "passage": {"text": "t", "entities": [{"start": 1}]}}, "entities.end"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, task: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"a.jsonl, line 1: .*{message}"):
        read_superglue(_write(tmp_path / "a.jsonl", row), task)


def test_a_bad_line_is_left_out_whole(tmp_path: Path) -> None:
    answers = [{"text": "yes", "idx": 1, "label": 1}, {"text": "no", "idx": 2, "label": 2}]
    passage = {"text": "t", "questions": [{"question": "q", "idx": 1, "answers": answers}]}
    good = {"text": "t", "questions": [{"question": "q", "idx": 1, "answers": answers[:1]}]}
    path = _write(tmp_path / "a.jsonl", {"idx": 1, "passage": passage}, {"idx": 2, "passage": good})
    parsed = read_superglue(path, "multirc", skip_bad_lines=True)
    assert ([example.id for example in parsed.records], parsed.skipped) == (["2.1.1"], 1)


def test_files_are_found_and_few_shot_subsets_stand_in(tmp_path: Path) -> None:
    for name in ("train32", "val", "test"):
        (tmp_path / "CB").mkdir(exist_ok=True)
        (tmp_path / "CB" / f"{name}.jsonl").touch()
    found = [superglue_file(tmp_path, "cb", split).name for split in ("train", "valid", "test")]
    assert found == ["train32.jsonl", "val.jsonl", "test.jsonl"]
    (tmp_path / "CB" / "train.jsonl").touch()
    assert superglue_file(tmp_path / "CB", "cb", "train").name == "train.jsonl"
    (tmp_path / "CB" / "val.jsonl").rename(tmp_path / "CB" / "dev32.jsonl")
    with pytest.raises(UserError, match=r"CB: no file val\.jsonl; dev32\.jsonl does not stand in for it"):
        superglue_file(tmp_path, "cb", "valid")
    # It is no file that is merely missing, whose task is left out.
    with pytest.raises(UserError, match="dev32"):
        SuperGlue().read(tmp_path, "valid")
    (tmp_path / "CB" / "train.jsonl").unlink()
    assert superglue_file(tmp_path, "cb", "valid").name == "dev32.jsonl"
    with pytest.raises(UserError, match=r"COPA: no file train\.jsonl \| train32\.jsonl"):
        superglue_file(tmp_path, "copa", "train")
    with pytest.raises(UserError, match="unknown task of SuperGLUE 'axb'"):
        superglue_file(tmp_path, "axb", "test")
