"""The averages of GLUE and SuperGLUE, on the rows of Tables 4 and 5 of arXiv 2005.00743."""

import pytest

from synthetic_attention.metrics.averages import BENCHMARK_SCORES, benchmark_average

# Average, then the scores in the order of the columns.
GLUE = [
    (83.5, [53.1, 92.2, 92.0, 88.7, 89.1, 88.9, 88.2, 91.2, 84.7, 85.0, 91.7, 76.9]),
    (75.1, [41.2, 91.2, 85.9, 79.4, 74.0, 74.3, 85.5, 89.0, 77.6, 78.1, 87.6, 59.2]),
    (72.0, [18.9, 89.9, 86.4, 79.4, 75.3, 75.5, 85.2, 88.3, 77.4, 78.1, 86.9, 57.4]),
    (84.1, [53.3, 92.2, 91.2, 87.7, 89.3, 88.9, 88.6, 91.4, 85.0, 84.6, 92.3, 81.2]),
]
SUPERGLUE = [
    (70.3, [78.2, 72.1, 83.9, 59.0, 73.1, 32.1, 71.1, 70.3, 77.3, 65.8, 80.8]),
    (61.1, [69.5, 54.6, 73.2, 60.0, 63.0, 15.7, 58.4, 57.4, 67.5, 64.4, 66.3]),
    (72.2, [79.3, 82.7, 91.1, 64.0, 74.3, 34.9, 70.8, 69.9, 82.7, 64.6, 75.0]),
]
ROWS = [("glue", *row) for row in GLUE] + [("superglue", *row) for row in SUPERGLUE]


@pytest.mark.parametrize(("benchmark", "published", "columns"), ROWS)
def test_the_published_averages(benchmark: str, published: float, columns: list[float]) -> None:
    values = iter(columns)
    scores = {task: {name: next(values) for name in names} for task, names in BENCHMARK_SCORES[benchmark].items()}
    average = benchmark_average(benchmark, scores)
    assert average.value is not None
    # To the digit that is printed; the scores are rounded too.
    assert abs(average.value - published) < 0.1
    assert average.missing == ()
    assert next(values, None) is None


def test_what_is_missing_is_named_and_left_out() -> None:
    scores = {
        "sst2": {"accuracy": 90.0, "invalid": 3},
        "mnli": {"accuracy_matched": 70.0},
        "wnli": {"accuracy": 0.0},
    }
    average = benchmark_average("glue", scores)
    assert average.value == 80
    assert average.missing == ("cola", "mrpc", "stsb", "qqp", "mnli accuracy_mismatched", "qnli", "rte")
    nothing = benchmark_average("superglue", {})
    assert nothing.value is None
    assert len(nothing.missing) == 8
