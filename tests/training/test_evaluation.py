"""Scores and predictions of a run."""

from pathlib import Path

import pytest

from synthetic_attention.tasks import UserError
from synthetic_attention.training.evaluation import evaluate_run, generate_lines
from synthetic_attention.training.run_folder import RunFolder
from training.runs import Small, start


def test_evaluation_scores_and_writes_predictions(corpus: Path, tmp_path: Path, small: Small) -> None:
    run = tmp_path / "run"
    start(corpus, run, small("steps=2"))
    results = evaluate_run(run, beams=2)
    assert results["examples"] == 6
    predictions = Path(results["predictions"]).read_text(encoding="utf-8").split("\n")[:-1]
    sources = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    assert generate_lines(run, sources, beams=2)[0] == predictions
    with pytest.raises(UserError, match=r"2 of 2 lines .* the maximum of 64 tokens"):
        generate_lines(run, ["one " * 99] * 2)
    assert generate_lines(run, ["one " * 99, "two"], beams=1, truncate=True)[1] == 1
    with pytest.raises(UserError, match="got 0 beams"):
        generate_lines(run, ["one"], beams=0)
    with pytest.raises(UserError, match="got length penalty nan"):
        generate_lines(run, ["one"], length_penalty=float("nan"))
    (run / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be loaded"):
        generate_lines(run, ["one"])


def test_evaluations_do_not_replace_each_other(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    start(corpus, run, small("steps=1"))
    other.mkdir()
    for language, blank in (("en", "\n"), ("de", "zwei\n")):
        text = (corpus / f"test.{language}").read_text(encoding="utf-8")
        (other / f"test.{language}").write_text(text + blank, encoding="utf-8")
    results = [
        evaluate_run(run, beams=1),
        evaluate_run(run, beams=1, length_penalty=1.0),
        evaluate_run(run, beams=1, data=other),
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
    start(corpus, tmp_path / "run", small("steps=1"))

    def refuse(self: RunFolder, name: str, text: str) -> Path:
        raise PermissionError(f"not {name}")

    monkeypatch.setattr(RunFolder, "write_text", refuse)
    lines: list[str] = []
    results = evaluate_run(tmp_path / "run", beams=1, report=lines.append)
    assert results["predictions"] is None
    assert results["bleu"] >= 0
    assert "predictions and scores not written: not evaluation/test." in lines[0]
