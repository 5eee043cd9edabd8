"""GLUE's metrics against scikit-learn, scipy and counting by hand."""

import math
import sys

import pytest

from synthetic_attention.metrics.glue import accuracy, f1, glue_scores, matthews, pearson_spearman
from synthetic_attention.tasks import UserError

GOLDS = [1, 1, 1, 0, 0, 0, 0, 1]
GUESSES = [1, 0, 1, 0, 1, 0, 0, 1]
# True positives 3, false positives 1, false negatives 1, true negatives 3.


@pytest.fixture
def metrics() -> object:
    return pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


def test_accuracy_counts_what_is_no_label_as_wrong() -> None:
    assert accuracy(GUESSES, GOLDS) == 75
    assert accuracy([1, None, 0], [1, 1, 0]) == pytest.approx(200 / 3)
    assert accuracy([None], [0]) == 0


@pytest.mark.usefixtures("metrics")
def test_scores_that_can_be_counted_by_hand() -> None:
    assert f1(GUESSES, GOLDS) == pytest.approx(75)
    assert matthews(GUESSES, GOLDS) == pytest.approx(100 * (3 * 3 - 1 * 1) / math.sqrt(4 * 4 * 4 * 4))
    # Nothing is found, nothing is to be found, all one class.
    assert f1([0, 0], [1, 1]) == f1([0, 0], [0, 0]) == 0
    assert matthews([1, 1], [0, 1]) == matthews([0, 1], [1, 1]) == 0


def test_f1_and_matthews_are_scikit_learns(metrics) -> None:  # type: ignore[no-untyped-def]
    golds, guesses = [0, 1, 1, 0, 1, 1, 0], [1, 1, 0, 0, 1, 1, 1]
    assert f1(guesses, golds) == pytest.approx(100 * metrics.f1_score(golds, guesses), abs=1e-4)
    assert matthews(guesses, golds) == pytest.approx(100 * metrics.matthews_corrcoef(golds, guesses), abs=1e-4)


@pytest.mark.usefixtures("metrics")
def test_what_is_no_label_is_wrong_for_f1_and_a_class_of_its_own_for_matthews() -> None:
    # As if the other class had been guessed.
    assert f1([1, None, None, 0], [1, 1, 0, 0]) == pytest.approx(f1([1, 0, 1, 0], [1, 1, 0, 0]))
    assert f1([None, None], [1, 0]) == 0
    assert matthews([None, None, None], [1, 0, 1]) == 0
    assert 0 < matthews([1, None, 0, 0], [1, 1, 0, 0]) < 100


def test_correlations_are_scipys() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    golds, guesses = [0.0, 1.5, 2.2, 3.8, 5.0, 1.5], [0.4, 1.2, 3.0, 2.8, 4.8, 1.2]
    scores = pearson_spearman(guesses, golds)
    assert scores["pearson"] == pytest.approx(100 * stats.pearsonr(golds, guesses)[0], abs=1e-4)
    assert scores["spearman"] == pytest.approx(100 * stats.spearmanr(golds, guesses)[0], abs=1e-4)
    # Ranks 1, 2, 3 against 1, 3, 2: 1 − 6 · 2 / (3 · 8).
    assert pearson_spearman([0, 2, 1], [0, 1, 2])["spearman"] == pytest.approx(50)
    # A text that is no number is as far off as can be.
    assert pearson_spearman([0, None, 4], [0, 1, 4]) == pytest.approx(pearson_spearman([0, 5, 4], [0, 1, 4]))
    assert pearson_spearman([0, None, 2], [0, 4, 2]) == pytest.approx(pearson_spearman([0, 0, 2], [0, 4, 2]))


def test_a_constant_is_correlated_with_nothing() -> None:
    assert pearson_spearman([2, 2, 2], [0, 1, 2]) == {"pearson": 0, "spearman": 0}
    assert pearson_spearman([0, 1], [3, 3]) == {"pearson": 0, "spearman": 0}
    # A validation of one example must not stop a training.
    assert pearson_spearman([1], [1]) == {"pearson": 0, "spearman": 0}


@pytest.mark.usefixtures("metrics")
def test_each_task_has_its_official_metrics_and_counts_what_is_no_label() -> None:
    names = {task: {*glue_scores(task, [1, None, 0], [1, 1, 0])} for task in ("cola", "mrpc", "qqp", "sst2", "mnli")}
    assert names["cola"] == {"matthews", "invalid"}
    assert names["mrpc"] == names["qqp"] == {"accuracy", "f1", "invalid"}
    assert names["sst2"] == names["mnli"] == {"accuracy", "invalid"}
    pytest.importorskip("scipy.stats")
    assert glue_scores("stsb", [1.0, None, 5.0], [1.2, 1.0, 5.0])["invalid"] == 1


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sklearn.metrics", "scipy.stats"):
        monkeypatch.setitem(sys.modules, module, None)
    message = r"needs s\w+\.\w+, which is not installed; it comes with the extra glue: .* pip install -e '\.\[glue\]'"
    with pytest.raises(UserError, match=f"F1 {message}"):
        f1([1], [1])
    with pytest.raises(UserError, match=f"Matthews correlation {message}"):
        matthews([1], [1])
    with pytest.raises(UserError, match=f"correlation {message}"):
        pearson_spearman([1, 2], [1, 2])
    with pytest.raises(ValueError, match="got 0 predictions and 0 references"):
        accuracy([], [])
