"""Scores and predictions of a run."""

import re
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub import ModelCard

from documents import blocks
from synthesizer_lab.tasks import UserError
from synthesizer_lab.training.evaluation import evaluate_run
from synthesizer_lab.training.run_folder import RunFolder
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


def test_the_model_card_has_scores_and_code_that_runs(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    card, best = run / "README.md", start(corpus, run, small("max_steps=2")).metrics["best"]
    evaluate_run(run, num_beams=2)
    text = card.read_text(encoding="utf-8")
    header = ModelCard(text).data
    assert (header.license, header.language, header.pipeline_tag) == ("unknown", ["en", "de"], "translation")
    found = {(each.dataset_split, each.metric_name): each.metric_value for each in header.eval_results}
    assert found["validation", "BLEU (step 2)"] == best["bleu"]
    assert ("test", "chrF (beam2.penalty0.6)") in found
    assert f"\n| validation, step 2 | {best['bleu']:.2f} | {best['chrf']:.2f} |\n| test beam2.penalty0.6 | " in text
    assert "\n# run\n" in text
    assert str(tmp_path) not in text
    code = dict(blocks(card))
    assert code["console"].strip() == RunFolder(run).read_info()["commands"][0]
    monkeypatch.chdir(run)
    exec(code["python"], {})
    # A card that the user wrote stays.
    card.write_text("Mine.", encoding="utf-8")
    evaluate_run(run, num_beams=1)
    assert card.read_text(encoding="utf-8") == "Mine."
    # Memory for the weights can be missing too.
    monkeypatch.setattr(RunFolder, "load", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    for use in (evaluate_run, partial(generate_lines, lines=["one"])):
        with pytest.raises(UserError, match="out of memory; use a device with more memory"):
            use(run)


def test_evaluations_do_not_replace_each_other(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    start(corpus, run, small("max_steps=1"))
    other.mkdir()
    for language, blank in (("en", "\n"), ("de", "zwei\n")):
        text = (corpus / f"test.{language}").read_text(encoding="utf-8")
        (other / f"test.{language}").write_text(text + blank, encoding="utf-8")
    results = [evaluate_run(run, num_beams=1, **more) for more in ({}, {"max_new_tokens": 9}, {"data": other})]
    files = [Path(result["predictions"]) for result in results]
    assert len({*files}) == len(list((run / "evaluation").glob("*.json"))) == 3
    # A pair with a blank side has its line, and no part in the score, as in validation.
    assert files[2].read_text(encoding="utf-8").count("\n") == 7
    assert results[2]["examples"] == 6
    assert results[2]["bleu"] == results[0]["bleu"]
    assert results[2]["fingerprint"]["pairs"] == 7
    assert "\n| other test beam1.penalty1 | " in (run / "README.md").read_text(encoding="utf-8")


def test_a_run_that_cannot_be_written_to_is_scored_all_the_same(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, lines = tmp_path / "run", list[str]()
    start(corpus, run, small("max_steps=1"))
    (run / "evaluation").touch()
    (run / "README.md").unlink()
    (run / "README.md").mkdir()
    results = evaluate_run(run, num_beams=1, report=lines.append)
    assert results["predictions"] is None
    assert results["bleu"] >= 0
    assert re.fullmatch(r"predictions and scores not written: .*evaluation/test.* cannot be written: .*", lines[0])
    assert re.fullmatch(r"README.md not written: .*README.md.*", lines[-1])
