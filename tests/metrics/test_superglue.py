"""SuperGLUE's metrics against scikit-learn, the official definitions, and counting by hand."""

import pytest

from synthetic_attention.metrics.superglue import macro_f1, multirc_scores, record_scores, superglue_scores


def test_macro_f1_is_the_mean_over_the_three_classes() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    golds, guesses = [0, 0, 1, 1, 2, 2, 1], [0, 1, 1, 1, 2, 0, 2]
    expected = metrics.f1_score(golds, guesses, average="macro")
    assert macro_f1(guesses, golds, 3) == pytest.approx(100 * expected, abs=1e-4)
    # F1 of 1, 2/3 and 0.
    assert macro_f1([0, 1, 1], [0, 1, 2], 3) == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)
    # No label is of no class: it lowers the recall of its own, and adds no fourth.
    assert macro_f1([0, None, 1, 2], [0, 0, 1, 2], 3) == pytest.approx(100 * (2 / 3 + 1 + 1) / 3)
    assert superglue_scores("cb", [0, None, 1], [0, 1, 1]).keys() == {"accuracy", "f1", "invalid"}


def test_multirc_groups_answers_by_question() -> None:
    pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    golds = [1, 0, 1, 1, 0, 0]
    guesses = [1, 0, 1, 0, 0, None]
    groups = ["1.1", "1.1", "1.2", "1.2", "2.1", "2.2"]
    scores = multirc_scores(guesses, golds, groups)
    # Of four questions the first and the third are right throughout.
    assert scores["exact_match"] == 50
    # Over all answers: 2 true positives, 1 false negative, and the text that is no label counts as a false positive.
    assert scores["f1a"] == pytest.approx(100 * 4 / 6)
    assert superglue_scores("multirc", guesses, golds, groups) == {**scores, "invalid": 1}
    with pytest.raises(ValueError, match="got 1 predictions and 0 references"):
        superglue_scores("multirc", [1], [1])


def test_record_takes_the_best_answer() -> None:
    answers = [["New York", "the City of New York"], ["Zoë Ångström"], ["U.S."], ["Ann"], ["Bob"]]
    guesses = ["City of New-York", "zoë  ångström!", "The US", "", "Bob Bob Ann"]
    scores = record_scores(guesses, answers)
    # "city of newyork" shares city and of with "city of new york": 4 / 7. Empty: 0. Of Bob Bob Ann one word: 2 / 4.
    assert scores["f1"] == pytest.approx(100 * (4 / 7 + 1 + 1 + 0 + 0.5) / 5, abs=1e-4)
    assert scores["exact_match"] == pytest.approx(100 * 2 / 5)
    # The best for F1 and the best for exact match may be different answers.
    assert record_scores(["a b"], [["a b c", "b"]]) == pytest.approx({"f1": 100, "exact_match": 100})
    assert superglue_scores("record", ["x"], [["x"]]) == {"f1": 100, "exact_match": 100, "invalid": 0}
    with pytest.raises(ValueError, match=r"got references\[0\]=\[\]"):
        record_scores(["a"], [[]])


@pytest.mark.parametrize("task", ["boolq", "copa", "rte", "wic", "wsc"])
def test_the_other_tasks_have_accuracy(task: str) -> None:
    assert superglue_scores(task, [1, 0, None, 1], [1, 1, 0, 1]) == {"accuracy": 50, "invalid": 1}
