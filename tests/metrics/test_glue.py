"""Metrics of GLUE and SuperGLUE against scikit-learn, scipy, published averages and counting by hand."""

import pytest

from synthesizer_lab.data.glue import SUITES
from synthesizer_lab.metrics.glue import (
    accuracy,
    f1,
    macro_f1,
    matthews,
    multirc_scores,
    pearson_spearman,
    record_scores,
    suite_average,
    task_scores,
)

pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
pytest.importorskip("scipy.stats", reason="scipy is not installed")


def test_scores_that_can_be_counted_by_hand() -> None:
    # True positives 3, false positives 1, false negatives 1, true negatives 3.
    golds, guesses = [1, 1, 1, 0, 0, 0, 0, 1], [1, 0, 1, 0, 1, 0, 0, 1]
    assert accuracy(guesses, golds) == f1(guesses, golds) == pytest.approx(75)
    assert matthews(guesses, golds) == pytest.approx(50)
    assert accuracy([1, None, 0], [1, 1, 0]) == pytest.approx(200 / 3)
    # Nothing is found, nothing is to be found, all one class.
    assert f1([0, 0], [1, 1]) == f1([0, 0], [0, 0]) == 0
    assert matthews([1, 1], [0, 1]) == matthews([0, 1], [1, 1]) == 0


def test_what_is_no_label_is_wrong_for_f1_and_a_class_of_its_own_for_matthews() -> None:
    # As if the other class had been guessed.
    assert f1([1, None, None, 0], [1, 1, 0, 0]) == pytest.approx(f1([1, 0, 1, 0], [1, 1, 0, 0]))
    assert f1([None, None], [1, 0]) == 0
    assert matthews([None, None, None], [1, 0, 1]) == 0
    assert 0 < matthews([1, None, 0, 0], [1, 1, 0, 0]) < 100


def test_correlations_are_scipys() -> None:
    # A text that is no number is as far off as can be.
    assert pearson_spearman([0, None, 4], [0, 1, 4]) == pytest.approx(pearson_spearman([0, 5, 4], [0, 1, 4]))
    assert pearson_spearman([0, None, 2], [0, 4, 2]) == pytest.approx(pearson_spearman([0, 0, 2], [0, 4, 2]))
    # A constant is correlated with nothing.
    assert pearson_spearman([2, 2, 2], [0, 1, 2]) == {"pearson": 0, "spearman": 0}
    assert pearson_spearman([0, 1], [3, 3]) == {"pearson": 0, "spearman": 0}
    # A validation of one example must not stop a training.
    assert pearson_spearman([1], [1]) == {"pearson": 0, "spearman": 0}


def test_macro_f1_is_the_mean_over_the_three_classes() -> None:
    # F1 of 1, 2/3 and 0.
    assert macro_f1([0, 1, 1], [0, 1, 2], 3) == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)
    # No label is of no class: it lowers the recall of its own, and adds no fourth.
    assert macro_f1([0, None, 1, 2], [0, 0, 1, 2], 3) == pytest.approx(100 * (2 / 3 + 1 + 1) / 3)


def test_multirc_groups_answers_by_question() -> None:
    golds = [1, 0, 1, 1, 0, 0]
    guesses = [1, 0, 1, 0, 0, None]
    groups = ["1.1", "1.1", "1.2", "1.2", "2.1", "2.2"]
    scores = multirc_scores(guesses, golds, groups)
    # Of four questions the first and the third are right throughout.
    assert scores["exact_match"] == 50
    # Over all answers: 2 true positives, 1 false negative, and the text that is no label counts as a false positive.
    assert scores["f1a"] == pytest.approx(100 * 4 / 6)
    assert task_scores("multirc", guesses, golds, groups) == scores


def test_record_takes_the_best_answer() -> None:
    answers = [["New York", "the City of New York"], ["Zoë Ångström"], ["U.S."], ["Ann"], ["Bob"]]
    scores = record_scores(["City of New-York", "zoë  ångström!", "The US", "", "Bob Bob Ann"], answers)
    # "city of newyork" shares city and of with "city of new york": 4 / 7. Empty: 0. Of Bob Bob Ann one word: 2 / 4.
    assert scores["f1"] == pytest.approx(100 * (4 / 7 + 1 + 1 + 0 + 0.5) / 5, abs=1e-4)
    assert scores["exact_match"] == pytest.approx(100 * 2 / 5)
    # The best for F1 and the best for exact match may be different answers.
    assert record_scores(["a b"], [["a b c", "b"]]) == pytest.approx({"f1": 100, "exact_match": 100})
    assert task_scores("record", ["x"], [["x"]]) == {"f1": 100, "exact_match": 100}


# Average, then the scores in the order of the columns.
GLUE = [
    (83.5, [53.1, 92.2, 92.0, 88.7, 89.1, 88.9, 88.2, 91.2, 84.7, 85.0, 91.7, 76.9]),
    (84.1, [53.3, 92.2, 91.2, 87.7, 89.3, 88.9, 88.6, 91.4, 85.0, 84.6, 92.3, 81.2]),
]
SUPERGLUE = [
    (70.3, [78.2, 72.1, 83.9, 59.0, 73.1, 32.1, 71.1, 70.3, 77.3, 65.8, 80.8]),
    (72.2, [79.3, 82.7, 91.1, 64.0, 74.3, 34.9, 70.8, 69.9, 82.7, 64.6, 75.0]),
]
ROWS = [("glue", *row) for row in GLUE] + [("superglue", *row) for row in SUPERGLUE]


@pytest.mark.parametrize(("benchmark", "published", "columns"), ROWS)
def test_the_published_averages(benchmark: str, published: float, columns: list[float]) -> None:
    scores, rest = {}, iter(columns)
    for name, task in SUITES[benchmark].items():
        if name != "wnli":
            scores[name] = [next(rest) for _ in task.metrics]
    average, signature = suite_average(benchmark, scores)
    assert signature.endswith("; missing: none")
    # To the digit that is printed; the scores are rounded too.
    assert abs(average - published) < 0.1
