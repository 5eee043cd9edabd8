"""Scores and predictions of a run."""

from pathlib import Path

import pytest

from synthetic_attention.tasks import UserError
from synthetic_attention.training.evaluation import describe_evaluation, evaluate_run
from synthetic_attention.training.run_folder import RunFolder
from training.runs import Small, generate_lines, start


def test_evaluation_scores_and_writes_predictions(corpus: Path, tmp_path: Path, small: Small) -> None:
    run = tmp_path / "run"
    start(corpus, run, small("max_steps=2"))
    results = evaluate_run(run, num_beams=2)
    assert results["examples"] == 6
    predictions = Path(results["predictions"]).read_text(encoding="utf-8").split("\n")[:-1]
    sources = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    assert generate_lines(run, sources, num_beams=2)[0] == predictions
    with pytest.raises(UserError, match=r"2 of 2 lines .* the maximum of 64 tokens"):
        generate_lines(run, ["one " * 99] * 2)
    assert generate_lines(run, ["one " * 99, "two"], num_beams=1, on_long="truncate")[1] == 1
    with pytest.raises(UserError, match="num_beams=0"):
        generate_lines(run, ["one"], num_beams=0)
    with pytest.raises(UserError, match="length_penalty=nan"):
        generate_lines(run, ["one"], length_penalty=float("nan"))
    (run / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be loaded"):
        generate_lines(run, ["one"])


def test_evaluations_do_not_replace_each_other(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    start(corpus, run, small("max_steps=1"))
    other.mkdir()
    for language, blank in (("en", "\n"), ("de", "zwei\n")):
        text = (corpus / f"test.{language}").read_text(encoding="utf-8")
        (other / f"test.{language}").write_text(text + blank, encoding="utf-8")
    results = [
        evaluate_run(run, num_beams=1),
        evaluate_run(run, num_beams=1, max_new_tokens=9),
        evaluate_run(run, num_beams=1, data=other),
    ]
    files = [Path(result["predictions"]) for result in results]
    assert len({*files}) == len(list((run / "evaluation").glob("*.json"))) == 3
    # A pair with a blank side has its line, and no part in the score, as in validation.
    assert files[2].read_text(encoding="utf-8").count("\n") == 7
    assert results[2]["examples"] == 6
    assert results[2]["bleu"] == results[0]["bleu"]
    assert results[2]["fingerprint"]["pairs"] == 7


def test_a_run_that_cannot_be_written_to_is_scored_all_the_same(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(corpus, tmp_path / "run", small("max_steps=1"))

    def refuse(self: RunFolder, name: str, text: str) -> Path:
        raise PermissionError(f"not {name}")

    monkeypatch.setattr(RunFolder, "write_text", refuse)
    lines: list[str] = []
    results = evaluate_run(tmp_path / "run", num_beams=1, report=lines.append)
    assert results["predictions"] is None
    assert results["bleu"] >= 0
    assert "predictions and scores not written: not evaluation/test." in lines[0]


def test_scores_and_files_are_described() -> None:
    results = {
        **{"task": "classification", "split": "test", "examples": 3, "skipped": 2, "accuracy": 50.0},
        **{"predictions": "run/evaluation/test.jsonl"},
    }
    found = describe_evaluation(results).splitlines()
    assert found == [
        "test: 3 texts, 2 malformed lines left out",
        "accuracy 50.00",
        "predictions: run/evaluation/test.jsonl",
    ]
    # A split with hidden labels has predictions only.
    found = describe_evaluation({**results, "examples": 0}).splitlines()
    assert "accuracy 50.00" not in found
    assert found[-1] == "predictions: run/evaluation/test.jsonl"
