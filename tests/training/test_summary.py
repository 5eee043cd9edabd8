"""What is said of an evaluation."""

from synthetic_attention.training.summary import describe_evaluation

RESULTS = {
    "task": "classification",
    "split": "test",
    "examples": 3,
    "skipped": 0,
    "accuracy": 50.0,
    "predictions": "run/evaluation/test.jsonl",
    "files": [],
}


def test_scores_and_files_are_named() -> None:
    assert describe_evaluation({**RESULTS, "skipped": 2}).splitlines() == [
        "test: 3 texts, 2 malformed lines left out",
        "accuracy 50.00",
        "predictions: run/evaluation/test.jsonl",
    ]


def test_a_split_with_hidden_labels_has_predictions_and_no_scores() -> None:
    assert describe_evaluation({**RESULTS, "examples": 0}).splitlines() == [
        "test: no texts with a label, no scores",
        "predictions: run/evaluation/test.jsonl",
    ]
