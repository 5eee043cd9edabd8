"""GLUE and SuperGLUE: T5's prompts and label words, files, the mixture, scores, predictions."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synthesizer_lab.data.examples import IGNORED, TokenBatchSampler
from synthesizer_lab.data.glue import SUITES, GlueExample
from synthesizer_lab.data.tokenizer import decode, encode
from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.glue import Glue, GlueSplit, SuperGlue, prompt, read_label, target, training_pairs
from synthesizer_lab.tasks.large import new_tokenizer
from tasks.glue_files import HEADERS, write_glue, write_superglue

GLUE, SUPERGLUE = SUITES["glue"], SUITES["superglue"]
PAIR = {"sentence1": "It rains.", "sentence2": "It is wet."}


# In the words of the prompts of T5's published code (t5/data/glue_utils.py, preprocessors.py); the texts are ours.
@pytest.mark.parametrize(
    ("suite", "source", "label", "wanted"),
    [
        ("glue", "cola sentence: Birds sing.", 1, "acceptable"),
        ("glue", "sst2 sentence: dull", 0, "negative"),
        ("glue", "mrpc sentence1: It rains. sentence2: It is wet.", 1, "equivalent"),
        ("glue", "stsb sentence1: It rains. sentence2: It is wet.", 3.25, "3.2"),
        ("glue", "qqp question1: Why? question2: How?", 0, "not_duplicate"),
        ("glue", "mnli hypothesis: It is wet. premise: It rains.", 0, "entailment"),
        ("glue", "qnli question: Who? sentence: Ann did.", 1, "not_entailment"),
        ("glue", "rte sentence1: It rains. sentence2: It is wet.", 0, "entailment"),
        ("glue", "wnli sentence1: It rains. sentence2: It is wet.", 0, "not_entailment"),
        ("superglue", "boolq passage: Tea -- It is. question: is it", 1, "True"),
        ("superglue", "cb hypothesis: h premise: p", 2, "neutral"),
        ("superglue", "copa choice1: a choice2: b premise: p question: cause", 1, "choice2"),
        ("superglue", "multirc question: Who? answer: Ann paragraph: Ann came. She sat.", 0, "False"),
        ("superglue", "rte hypothesis: h premise: p", 1, "not_entailment"),
        ("superglue", "wic sentence1: a sentence2: b word: w", 1, "True"),
    ],
)
def test_every_task_is_posed_as_t5_poses_it(suite: str, source: str, label: float, wanted: str) -> None:
    name, texts = source.split(" ", 1)
    # In the order of the files; two spaces and the markup of MultiRC do not show.
    parts = {key: f"{text} " for key, text in re.findall(r"(\w+): (.*?)(?= \w+: |$)", texts)}
    parts = {key: parts[key].replace(". S", ".<br><b>S</b>" if name == "multirc" else ". S") for key in sorted(parts)}
    example = GlueExample(SUITES[suite][name], "0", parts, label)
    assert (prompt(example), target(example)) == (source, wanted)
    assert read_label(example, f" {wanted}\n") == (3.2 if name == "stsb" else label)
    assert training_pairs(example) == [(source, wanted)]
    hidden = replace(example, label=None)
    assert (prompt(hidden), target(hidden)) == (source, "")


def test_record_is_trained_on_every_answer_and_its_highlights_are_sentences() -> None:
    passage = "Ann met Zoë.\n@highlight\nThey talked\n@highlight\nAnn left\n@highlight\n'Bye'\n@highlight\nEnd"
    texts = {"query": "@placeholder left", "entities": "Ann, Zoë", "passage": passage}
    example = GlueExample(SUPERGLUE["record"], "0", texts, answers=("Ann", "Ann  Lee"))
    source = "record query: @placeholder left entities: Ann, Zoë passage: Ann met Zoë. They talked. Ann left. 'Bye' End"
    assert training_pairs(example) == [(source, "Ann"), (source, "Ann Lee")]
    assert target(example) == "Ann"
    assert read_label(example, " Zoë\nLee ") == "Zoë Lee"


def test_wsc_is_trained_on_right_referents_and_read_by_their_words() -> None:
    task = SUPERGLUE["wsc"]
    right = GlueExample(task, "0", {"text": "*t*", "referent": "The old cat"}, 1)
    wrong = GlueExample(task, "1", {"text": "t", "referent": "Bob's hat"}, 0)
    assert (training_pairs(right), training_pairs(wrong)) == ([("wsc: *t*", "The old cat")], [])
    for text in ("the old cat", "cat", "her Old cat", "my very old cat"):
        assert read_label(right, text) == 1
    for text in ("the old dog", "cat's"):
        assert read_label(right, text) == 0
    # Or a model that writes nothing would be right wherever the referent is not.
    for text in ("", "the", " a  the "):
        assert read_label(right, text) is read_label(wrong, text) is None
    assert read_label(wrong, "Bob") == 0
    assert read_label(wrong, "Bob's") == 1


def test_scores_are_rounded_to_a_fifth_and_what_is_no_label_word_is_none() -> None:
    pair, scored = GlueExample(GLUE["mrpc"], "0", PAIR, 1), GlueExample(GLUE["stsb"], "0", PAIR, 1)
    for score, text in ((0.0, "0.0"), (5.0, "5.0"), (2.857, "2.8"), (2.9, "2.8"), (3.1, "3.2"), (4.75, "4.8")):
        assert target(replace(scored, label=score)) == text
    for text in ("", "Equivalent", "equivalent .", "not equivalent", "1"):
        assert read_label(pair, text) is None
    for text in ("", "-1", "5.2", "nan", "inf", "1e1", "٣", "3,5", "two"):
        assert read_label(scored, text) is None
    assert [read_label(scored, text) for text in ("5", "4.", "0.37")] == [5.0, 4.0, 0.37]


@pytest.fixture
def both(tmp_path: Path) -> Path:
    write_glue(tmp_path / "glue")
    write_superglue(tmp_path / "superglue")
    return tmp_path


def _counts(split: GlueSplit) -> dict[str, int]:
    """The number of examples of each task and subset."""
    pairs = str(split.fingerprint()["tasks"]).split(", ")
    return {name: int(count) for name, count in (pair.rsplit(" ", 1) for pair in pairs)}


def _examples(task: Glue, split: GlueSplit, training: bool = False, maximum: int = 999, **more: Any) -> Any:
    return task.encode(split, new_tokenizer(task, split, 400, maximum), maximum, training=training, **more)


def test_all_tasks_that_are_there_are_read(both: Path) -> None:
    train, valid = (Glue().records(both / "glue", split).load() for split in ("train", "valid"))
    assert _counts(train) == {f"glue/{task}": 12 for task in HEADERS}
    singles = {f"glue/{task}": 6 for task in HEADERS if task != "mnli"}
    assert _counts(valid) == singles | {"glue/mnli matched": 6, "glue/mnli mismatched": 7}
    # The hypothesis comes first, as in T5's prompt, although the file has it last.
    assert "mnli hypothesis: the wind of tea premise: the tea of tea" in train.sources
    answers = SuperGlue().records(both, "valid").load()
    assert _counts(answers) == {f"superglue/{task}": 36 if task == "multirc" else 6 for task in SUPERGLUE}


def test_tasks_are_chosen_by_their_names(both: Path) -> None:
    def owners(task: Glue, split: str = "train", data: Path = both) -> list[str]:
        return list(dict.fromkeys(item.task.key for item in task.records(data, split).load().references))

    assert owners(Glue(tasks=["rte", "SST-2", "rte"])) == ["glue/rte", "glue/sst2"]
    assert owners(Glue(tasks=["rte", "cb"], together=True)) == ["glue/rte", "superglue/rte", "superglue/cb"]
    assert owners(SuperGlue(tasks="superglue/rte", together=True)) == ["superglue/rte"]
    for task in (Glue(), Glue(tasks="sst2")):
        assert owners(task, data=both / "glue" / "SST-2") == ["glue/sst2"]
    with pytest.raises(UserError, match=r"got unknown task 'sst'; expected some of: cola, sst2, .*wnli$"):
        Glue(tasks=["sst"])


def test_what_cannot_be_trained_on_is_not_validated_on(tmp_path: Path) -> None:
    write_glue(tmp_path, tasks=("sst2", "rte", "qnli"))
    (tmp_path / "QNLI" / "train.tsv").unlink()
    assert {*_counts(Glue().records(tmp_path, "valid").load())} == {"glue/sst2", "glue/rte"}
    with pytest.raises(UserError, match="no official files of QNLI for split 'train'"):
        Glue(tasks=["qnli", "rte"]).records(tmp_path, "train").load()
    assert {*_counts(Glue(tasks="qnli").records(tmp_path, "valid").load())} == {"glue/qnli"}
    with pytest.raises(UserError, match=r"no official files of CoLA, .* for split 'test'"):
        Glue().records(tmp_path, "test").load()
    with pytest.raises(UserError, match="any task of superglue for split 'train'"):
        Glue(together=True).records(tmp_path, "train").load()


def test_of_both_suites_wnli_is_left_out_and_rte_counts_once(tmp_path: Path) -> None:
    write_glue(tmp_path / "glue", train=15, tasks=("rte", "wnli", "sst2"))
    write_superglue(tmp_path / "superglue", train=15, tasks=("rte", "cb"))
    task = Glue(together=True)
    split = task.records(tmp_path, "train").load()
    examples = _examples(task, split, training=True)
    halves = {"glue/rte": 8, "glue/sst2": 15, "superglue/rte": 8, "superglue/cb": 15}
    assert examples.counts == halves
    rng = np.random.default_rng(0)
    epochs = [[examples.rows[index] for index in examples.draw(rng, 0, number)] for number in (0, 1)]
    for rows in epochs:
        assert Counter(split.references[row].task.key for row in rows) == halves
    # Two epochs have all of RTE.
    assert len({row for row in epochs[0] + epochs[1] if split.references[row].task.key == "glue/rte"}) == 15


def test_a_pass_of_training_has_each_task_in_proportion_up_to_the_cap(tmp_path: Path) -> None:
    for name, count in (("sst2", 40), ("rte", 15), ("cola", 4)):
        write_glue(tmp_path, train=count, tasks=(name,))
    task = Glue(cap=20)
    split = task.records(tmp_path, "train").load()
    examples = _examples(task, split, training=True)
    seen: Counter[int] = Counter()
    for number in range(4):
        sampler = TokenBatchSampler(examples, 99, seed=5, num_batches=1)
        drawn = [index for batch in sampler.batches(number) for index in batch]
        assert len({*drawn}) == len(drawn)
        counts = Counter(split.references[examples.rows[index]].task.key for index in drawn)
        assert counts == {"glue/cola": 4, "glue/sst2": 20, "glue/rte": 15}
        # A pass is a function of seed and number.
        again = TokenBatchSampler(examples, 99, seed=5, num_batches=1)
        assert [*map(list, again.batches(number))] == [*map(list, sampler.batches(number))]
        seen.update(drawn)
    large = [index for index in seen if split.references[examples.rows[index]].task.key == "glue/sst2"]
    # Of 40, 20 in a pass: each twice in four of them.
    assert [seen[index] for index in large] == [2] * 40
    assert sorted(_examples(Glue(), split, training=True).draw(np.random.default_rng(0))) == [*range(59)]


def test_record_and_wsc_are_trained_on_what_is_right(both: Path) -> None:
    task = SuperGlue(tasks=["record", "wsc"])
    split = task.records(both, "train").load()
    tokenizer = new_tokenizer(task, split, 400, 999)
    examples = task.encode(split, tokenizer, 999, training=True)
    answers = decode(tokenizer, [ids.tolist() for _, ids in examples.items()])
    # Of twelve queries six have two answers; of twelve nouns six are right.
    assert [split.references[row].task.name for row in examples.rows] == ["record"] * 18 + ["wsc"] * 6
    assert Counter(answers[:18]) == {"Ann": 12, "Bob": 6}
    assert all(split.references[row].label == 1 for row in examples.rows[18:])
    split = task.records(both, "valid").load()
    # The loss of a validation leaves out the wrong nouns, unless there is nothing else.
    ignored = [{*ids.tolist()} == {IGNORED} for _, ids in task.encode(split, tokenizer, 999).items()]
    assert ignored == [example.task.name == "wsc" and example.label == 0 for example in split.references]


def test_validation_takes_some_of_each_task(both: Path) -> None:
    split = Glue(together=True).records(both, "valid").load()
    assert len(_examples(Glue(together=True), split)) == len(split)
    few = _examples(Glue(together=True, valid_examples=4), split)
    counts = Counter(f"{split.references[row].task.key} {split.references[row].subset}".rstrip() for row in few.rows)
    # Of MultiRC whole questions, of three answers each.
    assert counts == {name: 3 if name == "superglue/multirc" else 4 for name in _counts(split)}
    assert few.rows == sorted(few.rows)
    assert _examples(Glue(together=True, valid_examples=4), split).rows == few.rows


def test_a_long_prompt_loses_the_end_of_its_longest_text() -> None:
    texts = {"question": "is it so", "passage": " ".join(["straße"] * 60)}
    split = GlueSplit.of("train", [GlueExample(SUPERGLUE["boolq"], "0", texts, 1)])
    task = SuperGlue()
    tokenizer = new_tokenizer(task, split, 300, 50)
    assert len(encode(tokenizer, split.sources)[0]) > 50
    for training in (False, True):
        examples = task.encode(split, tokenizer, 50, "truncate", training)
        assert examples.truncated == 1
        (text,) = decode(tokenizer, [ids.tolist() for ids, _ in examples.items()])
        assert text.startswith("boolq passage: straße straße")
        assert text.endswith(" question: is it so")
        assert 40 < len(examples[0][0]) <= 50
    with pytest.raises(UserError, match="train prompts: 1 of 1 examples are longer than the maximum of 50 tokens"):
        task.encode(split, tokenizer, 50)


def test_right_answers_score_everything_and_wrong_ones_nothing(both: Path, metrics: Any) -> None:
    names = [f"{suite}/{task}" for suite, tasks in SUITES.items() for task in tasks]
    split = Glue(together=True, tasks=names).records(both, "valid").load()
    items = split.references
    # What WSC calls wrong is right where another noun is written.
    wrong_nouns = [item.task.name == "wsc" and item.label == 0 for item in items]
    right = ["nobody" if is_wrong else text for is_wrong, text in zip(wrong_nouns, split.targets, strict=True)]
    scores = Glue().score(right, items)
    assert scores["invalid"] == 0
    for suite, tasks in SUITES.items():
        for name, task in tasks.items():
            for metric in task.metrics:
                assert scores[f"{suite}_{name}_{metric}"] == pytest.approx(100, abs=0.2), (task, metric)
        assert str(scores[f"{suite}_average_signature"]).endswith("missing: none")
        assert scores[f"{suite}_average"] == pytest.approx(100, abs=0.1)
    assert scores["average"] == pytest.approx(100, abs=0.1)
    nothing = Glue().score(["no such word"] * len(items), items)
    # ReCoRD's and WSC's outputs are names: any is one.
    assert nothing["invalid"] == len(items) - 12
    assert nothing["superglue_wsc_accuracy"] == 50.0
    zeros = {"glue_sst2_accuracy", "glue_cola_matthews", "glue_qqp_f1", "superglue_cb_f1", "superglue_multirc_f1a"}
    zeros |= {"superglue_record_f1", "superglue_multirc_exact_match", "glue_mnli_accuracy_mismatched"}
    assert {nothing[name] for name in zeros} == {0.0}


def test_hidden_labels_are_predicted_and_not_scored(tmp_path: Path) -> None:
    write_glue(tmp_path, tasks=("rte", "sst2"))
    (tmp_path / "RTE" / "test.tsv").write_text("index\tsentence1\tsentence2\n0\tIt rains.\tIt is wet.\n")
    split = Glue().records(tmp_path, "test").load()
    assert (split.targets, split.complete()) == ([""], [])
    (line,) = Glue().predictions(split, ["entailment"])[0].splitlines()
    expected = {"task": "glue/rte", "id": "0", "gold": None, "predicted": "entailment", "text": "entailment"}
    assert json.loads(line) == expected
    assert Glue().score([], []) == {"invalid": 0}
