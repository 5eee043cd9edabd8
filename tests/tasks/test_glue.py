"""GLUE and SuperGLUE: T5's prompts and label words, files, the mixture, scores, predictions."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synthetic_attention.data.examples import IGNORED
from synthetic_attention.data.glue import GlueExample
from synthetic_attention.data.lines import Parsed
from synthetic_attention.data.tokenizer import decode, encode
from synthetic_attention.metrics.glue import SUITE_SCORES
from synthetic_attention.tasks import UserError
from synthetic_attention.tasks.glue import Glue, GlueSuite, SuperGlue
from synthetic_attention.tasks.glue_data import (
    SUITES,
    GlueSplit,
    Item,
    TaskMixture,
    longest_target,
    prompt,
    read_label,
    target,
    training_pairs,
)
from synthetic_attention.tasks.glue_scores import SCORE_LABELS, prediction_lines, suite_scores
from synthetic_attention.training.trainer import TokenBatchSampler
from tasks.glue_files import HEADERS, write_glue, write_superglue

GLUE, SUPERGLUE = SUITES["glue"], SUITES["superglue"]
PAIR = {"sentence1": "It rains.", "sentence2": "It is wet."}


# In the words of the prompts of T5's published code (t5/data/glue_utils.py, preprocessors.py); the texts are ours.
@pytest.mark.parametrize(
    ("benchmark", "task", "texts", "label", "source", "wanted"),
    [
        ("glue", "cola", {"sentence": "Birds sing."}, 1, "cola sentence: Birds sing.", "acceptable"),
        ("glue", "sst2", {"sentence": "dull "}, 0, "sst2 sentence: dull", "negative"),
        ("glue", "mrpc", PAIR, 1, "mrpc sentence1: It rains. sentence2: It is wet.", "equivalent"),
        ("glue", "stsb", PAIR, 3.25, "stsb sentence1: It rains. sentence2: It is wet.", "3.2"),
        (
            "glue",
            "qqp",
            {"question1": "Why?", "question2": "How?"},
            0,
            "qqp question1: Why? question2: How?",
            "not_duplicate",
        ),
        (
            "glue",
            "mnli",
            {"hypothesis": "It is wet.", "premise": "It rains."},
            0,
            "mnli hypothesis: It is wet. premise: It rains.",
            "entailment",
        ),
        (
            "glue",
            "qnli",
            {"question": "Who?", "sentence": "Ann did."},
            1,
            "qnli question: Who? sentence: Ann did.",
            "not_entailment",
        ),
        ("glue", "rte", PAIR, 0, "rte sentence1: It rains. sentence2: It is wet.", "entailment"),
        ("glue", "wnli", PAIR, 0, "wnli sentence1: It rains. sentence2: It is wet.", "not_entailment"),
        (
            "superglue",
            "boolq",
            {"passage": "Tea -- It is.", "question": "is it"},
            1,
            "boolq passage: Tea -- It is. question: is it",
            "True",
        ),
        ("superglue", "cb", {"hypothesis": "h", "premise": "p"}, 2, "cb hypothesis: h premise: p", "neutral"),
        (
            "superglue",
            "copa",
            {"choice1": "a", "choice2": "b", "premise": "p", "question": "cause"},
            1,
            "copa choice1: a choice2: b premise: p question: cause",
            "choice2",
        ),
        (
            "superglue",
            "multirc",
            {"question": "Who?", "answer": "Ann", "paragraph": "<b>Sent 1: </b>Ann came.<br>She sat."},
            0,
            "multirc question: Who? answer: Ann paragraph: Sent 1: Ann came. She sat.",
            "False",
        ),
        ("superglue", "rte", {"hypothesis": "h", "premise": "p"}, 1, "rte hypothesis: h premise: p", "not_entailment"),
        (
            "superglue",
            "wic",
            {"sentence1": "a", "sentence2": "b", "word": "w"},
            1,
            "wic sentence1: a sentence2: b word: w",
            "True",
        ),
        ("superglue", "wsc", {"text": "Ann fed the cat; *it* ate.", "referent": "the cat"}, 1, None, "the cat"),
    ],
)
def test_every_task_is_posed_as_t5_poses_it(
    benchmark: str, task: str, texts: dict[str, str], label: float, source: str | None, wanted: str
) -> None:
    layout, example = SUITES[benchmark][task], GlueExample("0", texts, label)
    assert prompt(layout, example) == (source or "wsc: Ann fed the cat; *it* ate.")
    assert target(layout, example) == wanted
    assert read_label(layout, example, f" {wanted}\n") == (3.2 if task == "stsb" else label)
    assert training_pairs(Item(benchmark, task, "", example)) == [(prompt(layout, example), wanted)]


def test_record_is_trained_on_every_answer_and_its_highlights_are_sentences() -> None:
    passage = "Ann met Zoë.\n@highlight\nThey talked\n@highlight\nAnn left\n@highlight\n'Bye'\n@highlight\nEnd"
    texts = {"query": "@placeholder left", "entities": "Ann, Zoë", "passage": passage}
    example = GlueExample("0", texts, answers=("Ann", "Ann  Lee"))
    source = "record query: @placeholder left entities: Ann, Zoë passage: Ann met Zoë. They talked. Ann left. 'Bye' End"
    task = SUPERGLUE["record"]
    assert training_pairs(Item("superglue", "record", "", example)) == [(source, "Ann"), (source, "Ann Lee")]
    assert target(task, example) == "Ann"
    assert read_label(task, example, " Zoë\nLee ") == "Zoë Lee"


def test_wsc_is_trained_on_right_referents_and_read_by_their_words() -> None:
    task = SUPERGLUE["wsc"]
    right = GlueExample("0", {"text": "t", "referent": "The old cat"}, 1)
    wrong = GlueExample("1", {"text": "t", "referent": "Bob's hat"}, 0)
    assert [pair for example in (right, wrong) for pair in training_pairs(Item("superglue", "wsc", "", example))] == [
        ("wsc: t", "The old cat")
    ]
    for text in ("the old cat", "cat", "her Old cat", "my very old cat"):
        assert read_label(task, right, text) == 1
    for text in ("the old dog", "cat's"):
        assert read_label(task, right, text) == 0
    # Or a model that writes nothing would be right wherever the referent is not.
    for text in ("", "the", " a  the "):
        assert read_label(task, right, text) is read_label(task, wrong, text) is None
    assert read_label(task, wrong, "Bob") == 0
    assert read_label(task, wrong, "Bob's") == 1


@pytest.mark.parametrize(
    ("score", "text"), [(0.0, "0.0"), (5.0, "5.0"), (2.857, "2.8"), (2.9, "2.8"), (3.1, "3.2"), (4.75, "4.8")]
)
def test_scores_are_rounded_to_a_fifth(score: float, text: str) -> None:
    assert target(GLUE["stsb"], GlueExample("0", PAIR, score)) == text


def test_what_is_no_label_word_is_none() -> None:
    example = GlueExample("0", PAIR, 1)
    for text in ("", "Equivalent", "equivalent .", "not equivalent", "1"):
        assert read_label(GLUE["mrpc"], example, text) is None
    for text in ("", "-1", "5.2", "nan", "inf", "1e1", "٣", "3,5", "two"):
        assert read_label(GLUE["stsb"], example, text) is None
    assert [read_label(GLUE["stsb"], example, text) for text in ("5", "4.", "0.37")] == [5.0, 4.0, 0.37]


def test_an_example_without_label_has_no_target() -> None:
    for task in (GLUE["cola"], GLUE["stsb"], SUPERGLUE["record"]):
        with pytest.raises(ValueError, match=f"got example 7 of {task.name} without label"):
            target(task, GlueExample("7", dict.fromkeys(task.texts, "x")))


@pytest.fixture
def metrics() -> Any:
    """scikit-learn's; what needs them is not tested where the extra "glue" is not installed."""
    pytest.importorskip("scipy.stats", reason="scipy is not installed")
    return pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


@pytest.fixture
def both(tmp_path: Path) -> Path:
    write_glue(tmp_path / "glue")
    write_superglue(tmp_path / "superglue")
    return tmp_path


def _counts(split: GlueSplit) -> dict[str, int]:
    """The number of examples of each task and subset."""
    pairs = str(split.fingerprint()["tasks"]).split(", ")
    return {name: int(count) for name, count in (pair.rsplit(" ", 1) for pair in pairs)}


def _examples(task: GlueSuite, split: GlueSplit, training: bool = False, maximum: int = 999, **more: Any) -> Any:
    return task.encode(split, task.train_tokenizer(split, 400, maximum), maximum, training=training, **more)


def _epoch(examples: TaskMixture, number: int, seed: int = 0) -> list[int]:
    return examples.draw(np.random.default_rng(0), seed, number).tolist()


def test_all_tasks_that_are_there_are_read(both: Path) -> None:
    train, valid = (Glue().read(both / "glue", split) for split in ("train", "valid"))
    assert _counts(train) == {f"glue/{task}": 12 for task in HEADERS}
    singles = {f"glue/{task}": 6 for task in HEADERS if task != "mnli"}
    assert _counts(valid) == singles | {"glue/mnli matched": 6, "glue/mnli mismatched": 7}
    assert Glue().read(both, "valid").fingerprint() == valid.fingerprint()
    answers = SuperGlue().read(both, "valid")
    assert _counts(answers) == {
        f"superglue/{task}": 36 if task == "multirc" else 6 for task in SUITE_SCORES["superglue"]
    }
    together = Glue(together=True).read(both, "train")
    expected = _counts(train) | _counts(SuperGlue().read(both, "train"))
    assert _counts(together) == {name: count for name, count in expected.items() if name != "glue/wnli"}
    assert together.fingerprint() == SuperGlue(together=True).read(both, "train").fingerprint()


def test_tasks_are_chosen_by_their_names(both: Path) -> None:
    def owners(task: GlueSuite, split: str = "train", data: Path = both) -> list[str]:
        return list(dict.fromkeys(item.owner for item in task.read(data, split).items))

    assert owners(Glue(tasks=["rte", "SST-2", "rte"])) == ["glue/rte", "glue/sst2"]
    assert owners(Glue(tasks=["rte", "cb"], together=True)) == ["glue/rte", "superglue/rte", "superglue/cb"]
    assert owners(SuperGlue(tasks="superglue/rte", together=True)) == ["superglue/rte"]
    assert owners(Glue(tasks="sst2"), data=both / "glue" / "SST-2") == ["glue/sst2"]
    (item, *_) = Glue(tasks="mnli").read(both, "valid_mismatched").items
    assert item.subset == "mismatched"
    with pytest.raises(UserError, match=r"got unknown task 'sst'; expected some of: cola, sst2, .*wnli$"):
        Glue(tasks=["sst"])
    with pytest.raises(UserError, match=r"got unknown task 'glue/cb'; expected some of: glue/cola, .*superglue/wsc$"):
        Glue(tasks="glue/cb", together=True)


def test_what_cannot_be_trained_on_is_not_validated_on(tmp_path: Path) -> None:
    write_glue(tmp_path, tasks=("sst2", "rte", "qnli"))
    (tmp_path / "QNLI" / "train.tsv").unlink()
    assert {*_counts(Glue().read(tmp_path, "valid"))} == {"glue/sst2", "glue/rte"}
    with pytest.raises(UserError, match=r"QNLI: no file train\.tsv"):
        Glue(tasks=["qnli", "rte"]).read(tmp_path, "train")
    assert {*_counts(Glue(tasks="qnli").read(tmp_path, "valid"))} == {"glue/qnli"}
    # A folder of files to score has nothing to train on.
    for task in ("SST-2", "RTE"):
        (tmp_path / task / "train.tsv").unlink()
    assert {*_counts(Glue().read(tmp_path, "valid"))} == {"glue/sst2", "glue/rte", "glue/qnli"}
    assert Glue().read(tmp_path, "valid").has_labels
    (tmp_path / "SST-2" / "test.tsv").write_text("index\tsentence\n0\tgood\n", encoding="utf-8")
    assert not Glue(tasks="sst2").read(tmp_path, "test").has_labels
    (tmp_path / "SST-2" / "test.tsv").unlink()
    with pytest.raises(UserError, match="no task of superglue has files of split 'valid'; expected folders"):
        Glue(together=True).read(tmp_path, "valid")
    with pytest.raises(UserError, match="no task of glue has files of split 'test'"):
        Glue().read(tmp_path, "test")
    with pytest.raises(UserError, match="nowhere: no such folder"):
        Glue().read(tmp_path / "nowhere", "train")


def test_of_both_suites_wnli_is_left_out_and_rte_counts_once(tmp_path: Path) -> None:
    write_glue(tmp_path / "glue", train=15, tasks=("rte", "wnli", "sst2"))
    write_superglue(tmp_path / "superglue", train=15, tasks=("rte", "cb"))
    task = Glue(together=True)
    split = task.read(tmp_path, "train")
    assert {*_counts(split)} == {"glue/rte", "glue/sst2", "superglue/rte", "superglue/cb"}
    assert {*_counts(Glue(together=True, tasks=["wnli", "cb"]).read(tmp_path, "train"))} == {
        "glue/wnli",
        "superglue/cb",
    }
    assert "glue/wnli" in _counts(Glue().read(tmp_path, "train"))
    examples = _examples(task, split, training=True)
    assert isinstance(examples, TaskMixture)
    halves = {"glue/rte": 8, "glue/sst2": 15, "superglue/rte": 8, "superglue/cb": 15}
    assert examples.counts() == halves
    epochs = [[examples.rows[index] for index in _epoch(examples, number)] for number in (0, 1)]
    for rows in epochs:
        assert Counter(split.items[row].owner for row in rows) == halves
    # Two epochs have all of RTE.
    assert len({row for row in epochs[0] + epochs[1] if split.items[row].owner == "glue/rte"}) == 15


def test_a_pass_of_training_has_each_task_in_proportion_up_to_the_cap(tmp_path: Path) -> None:
    write_glue(tmp_path, train=40, tasks=("sst2",))
    write_glue(tmp_path, train=15, tasks=("rte",))
    write_glue(tmp_path, train=4, tasks=("cola",))
    task = Glue(cap=20)
    split = task.read(tmp_path, "train")
    examples = _examples(task, split, training=True)
    assert isinstance(examples, TaskMixture)
    seen: Counter[int] = Counter()
    for number in range(4):
        sampler = TokenBatchSampler(examples.lengths(), 99, seed=5, num_batches=1, draw=examples.draw)
        drawn = [index for batch in sampler.epoch(number) for index in batch]
        assert len({*drawn}) == len(drawn)
        counts = Counter(split.items[examples.rows[index]].owner for index in drawn)
        assert counts == {"glue/cola": 4, "glue/sst2": 20, "glue/rte": 15}
        # A pass is a function of seed and number.
        again = TokenBatchSampler(examples.lengths(), 99, seed=5, num_batches=1, draw=examples.draw)
        assert again.epoch(number) == sampler.epoch(number)
        seen.update(drawn)
    large = [index for index in seen if split.items[examples.rows[index]].owner == "glue/sst2"]
    # Of 40, 20 in a pass: each twice in four of them.
    assert {seen[index] for index in large} == {2}
    assert len(large) == 40
    tokens = examples.lengths().sum(axis=1)
    half = sum(tokens[index] for index in large) / 2
    assert examples.tokens_per_pass() == pytest.approx(tokens.sum() - half)
    assert (examples.examples_per_pass(), len(examples)) == (39, 59)
    plain = _examples(Glue(), split, training=True)
    assert sorted(plain.draw(np.random.default_rng(0))) == [*range(59)]
    assert plain.tokens_per_pass() == plain.lengths().sum()


def test_record_and_wsc_are_trained_on_what_is_right(both: Path) -> None:
    task = SuperGlue(tasks=["record", "wsc"])
    split = task.read(both, "train")
    tokenizer = task.train_tokenizer(split, 400, 999)
    examples = task.encode(split, tokenizer, 999, training=True)
    answers = decode(tokenizer, [ids.tolist() for ids in examples.targets])
    by_task = Counter(split.items[row].task for row in examples.rows)
    # Of twelve queries six have two answers; of twelve nouns six are right.
    assert by_task == {"record": 18, "wsc": 6}
    assert Counter(answers[:18]) == {"Ann": 12, "Bob": 6}
    assert all(split.items[row].example.label == 1 for row in examples.rows[18:])
    valid = task.encode(task.read(both, "valid"), tokenizer, 999)
    assert len(valid) == 12
    # The loss of a validation leaves out the wrong nouns, unless there is nothing else.
    assert [target.tolist() == [IGNORED] for target in valid.targets] == [
        split.items[row].task == "wsc" and split.items[row].example.label == 0
        for split in [task.read(both, "valid")]
        for row in valid.rows
    ]


def test_validation_takes_some_of_each_task(both: Path) -> None:
    split = Glue(together=True).read(both, "valid")
    assert len(_examples(Glue(together=True), split)) == len(split)
    few = _examples(Glue(together=True, valid_examples=4), split)
    counts = Counter(f"{split.items[row].owner} {split.items[row].subset}".rstrip() for row in few.rows)
    # Of MultiRC whole questions, of three answers each.
    assert counts == {name: 3 if name == "superglue/multirc" else 4 for name in _counts(split)}
    assert few.rows == sorted(few.rows)
    assert _examples(Glue(together=True, valid_examples=4), split).rows == few.rows


def test_a_long_prompt_loses_the_end_of_its_longest_text(tmp_path: Path) -> None:
    for stem in ("train", "val"):
        path = tmp_path / "BoolQ" / f"{stem}.jsonl"
        path.parent.mkdir(exist_ok=True)
        row = {"question": "is it so", "passage": " ".join(["straße"] * 60), "idx": 0, "label": True}
        path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    task = SuperGlue()
    split = task.read(tmp_path, "train")
    tokenizer = task.train_tokenizer(split, 300, 50)
    assert len(encode(tokenizer, split.sources)[0]) > 50
    for training in (False, True):
        examples = task.encode(split, tokenizer, 50, "truncate", training)
        assert examples.truncated == 1
        (text,) = decode(tokenizer, [ids.tolist() for ids in examples.sources])
        assert text.startswith("boolq passage: straße straße")
        assert text.endswith(" question: is it so")
        assert 40 < len(examples.sources[0]) <= 50
    with pytest.raises(UserError, match="train prompts: 1 of 1 lines are longer than the maximum of 50 tokens"):
        task.encode(split, tokenizer, 50)


def test_right_answers_score_everything_and_wrong_ones_nothing(both: Path, metrics: Any) -> None:
    names = [f"{suite}/{task}" for suite, tasks in SUITES.items() for task in tasks]
    items = Glue(together=True, tasks=names).read(both, "valid").items
    right = GlueSplit.of("valid", [Parsed(items)]).targets
    # What WSC calls wrong is right where another noun is written.
    right = [
        "nobody" if item.task == "wsc" and item.example.label == 0 else text
        for item, text in zip(items, right, strict=True)
    ]
    scores = suite_scores(items, right)
    assert scores["invalid"] == 0
    for suite, tasks in SUITE_SCORES.items():
        for task, metrics in tasks.items():
            for metric in metrics:
                assert scores[f"{suite}_{task}_{metric}"] == pytest.approx(100, abs=0.2), (task, metric)
        assert scores[f"{suite}_missing"] == "none"
        assert scores[f"{suite}_average"] == pytest.approx(100, abs=0.1)
    assert scores["average"] == pytest.approx(100, abs=0.1)
    assert {name for name, value in scores.items() if isinstance(value, float)} >= {*SCORE_LABELS} - {"invalid"}

    nothing = suite_scores(items, ["no such word"] * len(items))
    # ReCoRD's and WSC's outputs are names: any is one.
    assert nothing["invalid"] == len(items) - 12
    assert nothing["superglue_wsc_accuracy"] == 50.0
    zeros = {"glue_sst2_accuracy", "glue_cola_matthews", "glue_qqp_f1", "superglue_cb_f1", "superglue_multirc_f1a"}
    zeros |= {"superglue_record_f1", "superglue_multirc_exact_match", "glue_mnli_accuracy_mismatched"}
    assert {nothing[name] for name in zeros} == {0.0}
    assert nothing["glue_mnli_invalid"] == 13
    empty = suite_scores(items, [""] * len(items))
    assert empty["superglue_wsc_accuracy"] == 0.0
    assert empty["superglue_wsc_invalid"] == sum(item.task == "wsc" for item in items)


def test_scores_are_those_of_each_task_over_the_tasks_there(both: Path, metrics: Any) -> None:
    items = Glue(tasks=["sst2", "mrpc", "mnli", "wnli"]).read(both, "valid").items
    words = {"sst2": "positive", "mrpc": "equivalent", "mnli": "neutral", "wnli": "entailment"}
    scores = suite_scores(items, [words[item.task] for item in items])
    golds = [item.example.label for item in items if item.task == "mrpc"]
    f1 = 100 * float(metrics.f1_score(golds, [1] * 6))
    assert scores["glue_mrpc_f1"] == pytest.approx(f1)
    assert scores["glue_mrpc_accuracy"] == 50.0
    mnli = (100 * 2 / 6 + 100 * 2 / 7) / 2
    assert scores["glue_average"] == scores["average"] == pytest.approx((50 + (f1 + 50) / 2 + mnli) / 3)
    assert scores["glue_average_signature"] == "mean of sst2, mrpc, mnli; missing: cola, stsb, qqp, qnli, rte"
    assert scores["glue_missing"] == "cola, stsb, qqp, qnli, rte"
    assert "superglue_average" not in scores
    wnli = suite_scores([item for item in items if item.task == "wnli"], ["entailment"] * 6)
    assert (wnli["average"], "glue_average" in wnli) == (50.0, False)
    assert wnli["average_signature"] == "mean of all scores"
    both_suites = Glue(together=True, tasks=["sst2", "mrpc"])
    items = both_suites.read(both, "valid").items
    scores = both_suites.score(["positive"] * len(items), items)
    assert scores["superglue_missing"] == "boolq, cb, copa, multirc, record, rte, wic, wsc"
    assert scores["average_signature"] == "mean of glue_average"


@pytest.mark.parametrize("name", ["dev", "validation"])
def test_splits_have_other_names(both: Path, name: str) -> None:
    task = Glue(together=True)
    split = task.read(both, name)
    assert split.fingerprint() == task.read(both, "valid").fingerprint()
    assert {item.subset for item in split.items if item.task == "mnli"} == {"matched", "mismatched"}


def test_the_folder_of_one_task_is_not_read_as_anothers(both: Path) -> None:
    assert len(Glue(tasks="sst2").read(both / "glue" / "SST-2", "valid")) == 6
    with pytest.raises(UserError, match=r"SST-2/CoLA: no file dev\.tsv"):
        Glue(tasks="cola").read(both / "glue" / "SST-2", "valid")


def test_predictions_can_be_scored_again(both: Path, metrics: Any) -> None:
    items = Glue(together=True).read(both, "valid").items
    texts = ["True", "entailment", "equivalent", "3.8", "Bob", "no word"]
    written = [texts[row % 6] for row in range(len(items))]
    lines = [json.loads(line) for line in prediction_lines(items, written).splitlines()]
    assert len(lines) == len(items)
    scores = suite_scores(items, written)
    assert sum(line["predicted"] is None for line in lines) == scores["invalid"]

    def of(task: str) -> list[dict[str, Any]]:
        return [line for line in lines if line["task"] == task]

    for owner in ("glue/sst2", "glue/rte", "superglue/wsc", "superglue/boolq", "superglue/wic"):
        right = [line["gold"] == line["predicted"] for line in of(owner)]
        assert [line["score"] for line in of(owner)] == right
        assert scores[f"{owner.replace('/', '_')}_accuracy"] == pytest.approx(100 * np.mean(right))
    assert {line["subset"] for line in of("glue/mnli")} == {"matched", "mismatched"}
    assert {line["score"] for line in of("glue/stsb")} == {None}
    assert of("glue/stsb")[0]["gold"] == 4.5
    assert scores["superglue_record_f1"] == pytest.approx(
        100 * np.mean([line["score"] for line in of("superglue/record")])
    )
    questions: dict[str, list[bool]] = {}
    for line in of("superglue/multirc"):
        questions.setdefault(line["group"], []).append(line["gold"] == line["predicted"])
    assert scores["superglue_multirc_exact_match"] == pytest.approx(100 * np.mean([all(q) for q in questions.values()]))


def test_hidden_labels_are_predicted_and_not_scored(tmp_path: Path) -> None:
    write_glue(tmp_path, tasks=("rte", "sst2"))
    rows = ["index\tsentence1\tsentence2", "0\tIt rains.\tIt is wet."]
    (tmp_path / "RTE" / "test.tsv").write_text("\n".join(rows), encoding="utf-8")
    split = Glue().read(tmp_path, "test")
    assert (split.targets, split.complete()) == ([""], [])
    (line,) = prediction_lines(split.items, ["entailment"]).splitlines()
    assert json.loads(line) == {
        "task": "glue/rte",
        "id": "0",
        "gold": None,
        "predicted": "entailment",
        "text": "entailment",
        "score": None,
    }
    assert suite_scores([], []) == {"invalid": 0}


def test_the_longest_target_bounds_what_is_written(both: Path) -> None:
    task = Glue(tasks="rte")
    split = task.read(both, "valid")
    tokenizer = task.train_tokenizer(split, 300, 99)
    assert longest_target(split, tokenizer) == len(encode(tokenizer, ["not_entailment"])[0])
    names = SuperGlue(tasks="wsc").read(both, "valid")
    assert longest_target(names, tokenizer) == max(len(ids) for ids in encode(tokenizer, names.targets))


def test_options_that_cannot_be_are_refused() -> None:
    for options, message in (
        ({"cap": 0}, "got cap=0; expected at least 1"),
        ({"valid_examples": -1}, "got valid_examples=-1; expected 0"),
        ({"tasks": 3}, "got tasks=3; expected str or a list of str or null"),
    ):
        with pytest.raises(UserError, match=message):
            Glue.from_options(options)
