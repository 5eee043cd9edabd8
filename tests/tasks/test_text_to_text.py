"""T5's prompts and label words, what a model's text means, and the mixture."""

from collections import Counter

import pytest

from synthetic_attention.data.benchmark import Example
from synthetic_attention.tasks.text_to_text import BENCHMARKS, Mixture, prompt, read_label, target, training_pairs

GLUE, SUPERGLUE = BENCHMARKS["glue"], BENCHMARKS["superglue"]
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
    layout, example = BENCHMARKS[benchmark][task], Example("0", texts, label)
    assert prompt(layout, example) == (source or "wsc: Ann fed the cat; *it* ate.")
    assert target(layout, example) == wanted
    assert read_label(layout, example, f" {wanted}\n") == (3.2 if task == "stsb" else label)
    assert training_pairs(layout, [example]) == [(prompt(layout, example), wanted)]


def test_all_tasks_of_both_benchmarks_are_there() -> None:
    assert [*GLUE] == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
    assert [*SUPERGLUE] == ["boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc"]


def test_record_is_trained_on_every_answer_and_its_highlights_are_sentences() -> None:
    passage = "Ann met Zoë.\n@highlight\nThey talked\n@highlight\nAnn left\n@highlight\n'Bye'\n@highlight\nEnd"
    texts = {"query": "@placeholder left", "entities": "Ann, Zoë", "passage": passage}
    example = Example("0", texts, answers=("Ann", "Ann  Lee"))
    source = "record query: @placeholder left entities: Ann, Zoë passage: Ann met Zoë. They talked. Ann left. 'Bye' End"
    task = SUPERGLUE["record"]
    assert training_pairs(task, [example, Example("1", texts)]) == [(source, "Ann"), (source, "Ann Lee")]
    assert target(task, example) == "Ann"
    assert read_label(task, example, " Zoë\nLee ") == "Zoë Lee"


def test_wsc_is_trained_on_right_referents_and_read_by_their_words() -> None:
    task = SUPERGLUE["wsc"]
    right = Example("0", {"text": "t", "referent": "The old cat"}, 1)
    wrong = Example("1", {"text": "t", "referent": "Bob's hat"}, 0)
    assert training_pairs(task, [right, wrong]) == [("wsc: t", "The old cat")]
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
    assert target(GLUE["stsb"], Example("0", PAIR, score)) == text


def test_what_is_no_label_word_is_none() -> None:
    example = Example("0", PAIR, 1)
    for text in ("", "Equivalent", "equivalent .", "not equivalent", "1"):
        assert read_label(GLUE["mrpc"], example, text) is None
    for text in ("", "-1", "5.2", "nan", "inf", "1e1", "٣", "3,5", "two"):
        assert read_label(GLUE["stsb"], example, text) is None
    assert [read_label(GLUE["stsb"], example, text) for text in ("5", "4.", "0.37")] == [5.0, 4.0, 0.37]


def test_an_example_without_label_has_no_target() -> None:
    for task in (GLUE["cola"], GLUE["stsb"], SUPERGLUE["record"]):
        with pytest.raises(ValueError, match=f"got example 7 of {task.name} without label"):
            target(task, Example("7", dict.fromkeys(task.texts, "x")))


def test_rates_are_proportional_up_to_the_cap() -> None:
    sizes = {"large": 1000, "medium": 60, "small": 20}
    mixture = Mixture(sizes, cap=120)
    assert mixture.rates() == {"large": 120 / 200, "medium": 60 / 200, "small": 20 / 200}
    assert Mixture(sizes).rates()["small"] == 20 / 1080
    for number in range(3):
        epoch = mixture.epoch(number)
        assert Counter(task for task, _ in epoch) == mixture.counts() == {"large": 120, "medium": 60, "small": 20}
        # What is not capped is there once in every epoch.
        assert sorted(row for task, row in epoch if task == "medium") == [*range(60)]
        # And shuffled: every tenth of an epoch has all tasks near their rates.
        assert 5 < sum(task == "large" for task, _ in epoch[:20]) < 19


def test_a_capped_task_goes_on_until_all_was_seen() -> None:
    mixture = Mixture({"large": 50, "small": 5}, cap=20, seed=3)
    seen = Counter(row for number in range(5) for task, row in mixture.epoch(number) if task == "large")
    # 100 draws of 50 rows.
    assert seen == dict.fromkeys(range(50), 2)
    first = [row for number in range(2) for task, row in mixture.epoch(number) if task == "large"]
    assert len({*first}) == 40


def test_epochs_are_functions_of_the_seed_and_their_number() -> None:
    sizes = {"a": 30, "b": 30}
    assert Mixture(sizes, seed=1).epoch(4) == Mixture(sizes, seed=1).epoch(4)
    assert Mixture(sizes, seed=1).epoch(4) != Mixture(sizes, seed=2).epoch(4)
    assert Mixture(sizes, seed=1).epoch(4) != Mixture(sizes, seed=1).epoch(5)
    rows = {task: [row for name, row in Mixture(sizes).epoch(0) if name == task] for task in sizes}
    assert rows["a"] != rows["b"]


def test_mixtures_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="got cap=0; expected at least 1"):
        Mixture({"a": 1}, cap=0)
    for sizes in ({}, {"a": 0}):
        with pytest.raises(ValueError, match="expected at least one task, and an example of each"):
            Mixture(sizes)
