"""The task of summarization: reading, training on one reference, scoring against all."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synthesizer_lab.metrics.text import rouge
from synthesizer_lab.tasks import UserError, make_task
from synthesizer_lab.tasks.summarization import Summarization
from synthesizer_lab.training.evaluation import evaluate_run
from training.runs import generate_lines

WORDS = ("one", "two", "three", "four", "five", "six", "seven")


def _write(folder: Path, bad: bool = False) -> Path:
    rows: list[dict[str, Any]] = [
        {"id": f"d{row}", "source": [f"{word.title()} is a number.", "It is here."], "target": [f"{word} .", word]}
        for row, word in enumerate(WORDS)
    ]
    lines = [json.dumps(row) for row in rows] + ["{"] * bad
    folder.mkdir(exist_ok=True)
    (folder / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "dev.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[:3]).encode()))
    return folder


def test_all_references_are_kept_and_the_first_is_the_target(tmp_path: Path) -> None:
    split = Summarization().records(_write(tmp_path), "valid").load()
    assert (split.name, len(split), split.ids) == ("dev", 3, ["d0", "d1", "d2"])
    assert split.sources[0] == "One is a number. It is here."
    assert split.targets[:2] == ["one .", "two ."]
    assert split.references_of([2, 0]) == [("three .", "three"), ("one .", "one")]
    other = replace(split, references=[(target,) for target in split.targets])
    assert other.fingerprint()["target_sha256"] == split.fingerprint()["target_sha256"]
    assert other.fingerprint() != split.fingerprint()


def test_fields_can_be_named_and_must_not_be_blank(tmp_path: Path) -> None:
    rows = [{"body": ["a", "b"], "tldr": "t", "article": "no", "highlights": "no"}, {"body": " ", "tldr": "t"}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match="line 1: no field 'text'; the fields are: body, tldr"):
        Summarization("text", "tldr").records(tmp_path, "train").load()
    with pytest.raises(UserError, match="line 2: field 'body' is blank"):
        Summarization("body", "tldr").records(tmp_path, "train").load()
    split = Summarization("body", "tldr", skip_bad_lines=True).records(tmp_path, "train").load()
    assert (split.sources, split.references, split.skipped) == (["a b"], [("t",)], 1)
    split = Summarization(skip_bad_lines=True).records(tmp_path, "train").load()
    assert (split.sources, split.references) == (["no"], [("no",)])


def test_scores_are_rouge_of_the_best_reference() -> None:
    predictions, references = ["one .", "a"], [("two", "one ."), ("b",)]
    scores = Summarization().score(predictions, references)
    assert {name: scores[name] for name in Summarization.score_labels} == rouge(predictions, references)
    assert scores["rouge1"] == 50
    assert str(scores["rouge1_signature"]).startswith("rouge-score:")


def test_it_is_trained_evaluated_and_generates(tmp_path: Path, train: Callable[..., Any]) -> None:
    data, run = _write(tmp_path / "data"), tmp_path / "run"
    metrics, lines = train(make_task("summarization", {"max_summary_tokens": 6}), data, run)
    assert lines[0].startswith("train: 7 pairs, ")
    assert metrics["best"]["rougelsum"] >= 0
    results = evaluate_run(run, split="valid", num_beams=2, min_new_tokens=3, no_repeat_ngram_size=2)
    written = [json.loads(line) for line in Path(results["predictions"]).read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in written] == ["d0", "d1", "d2"]
    assert written[0].keys() == {"id", "source", "gold", "predicted"}
    expected = rouge([row["predicted"] for row in written], [row["gold"] for row in written])
    assert {name: results[name] for name in Summarization.score_labels} == expected
    (line,), truncated = generate_lines(run, ["Five is a number. " * 20], num_beams=1, on_long="truncate")
    assert truncated == 1
    assert len(line) <= 6 * 8
