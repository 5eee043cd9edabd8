"""The task of summarization: reading, training on one reference, scoring against all."""

import gzip
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from synthetic_attention import SynthesizerConfig
from synthetic_attention.metrics.rouge import rouge
from synthetic_attention.tasks import UserError, get_task
from synthetic_attention.tasks.generation import generate_ids
from synthetic_attention.tasks.summarization import Summaries, Summarization
from synthetic_attention.training.evaluation import evaluate_run, generate_lines
from synthetic_attention.training.session import start_run
from synthetic_attention.training.settings import read_settings

WORDS = ("one", "two", "three", "four", "five", "six", "seven")
SMALL = (
    *("d_model=16", "num_heads=2", "num_layers=1", "d_ff=32", "max_position_embeddings=48", "vocab_size=300"),
    *("batch_tokens=400", "warmup_steps=2", "eval_interval=2", "log_interval=1"),
)


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
    split = Summarization().read(_write(tmp_path), "valid")
    assert (split.name, len(split), split.ids) == ("dev", 3, ["d0", "d1", "d2"])
    assert split.sources[0] == "One is a number. It is here."
    assert split.targets[:2] == ["one .", "two ."]
    assert Summarization().references(split, [2, 0]) == [("three .", "three"), ("one .", "one")]
    other = Summaries(split.name, split.sources, split.targets, split.ids, [(target,) for target in split.targets])
    assert other.fingerprint()["target_sha256"] == split.fingerprint()["target_sha256"]
    assert other.fingerprint() != split.fingerprint()


def test_malformed_lines_are_counted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.jsonl, line 8: not JSON"):
        Summarization().read(_write(tmp_path, bad=True), "train")
    task = Summarization(skip_bad_lines=True)
    split = task.read(tmp_path, "train")
    assert (len(split), split.skipped) == (7, 1)
    examples = task.examples(split, task.tokenizer(split, 300, 48), 48)
    assert (examples.dropped, examples.skipped) == (0, 1)


def test_a_set_on_the_hub_is_read_by_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"article": "One is here.", "highlights": "one ."}, {"article": " ", "highlights": "two ."}]
    asked: list[Any] = []

    class Found(list[dict[str, Any]]):
        column_names = ("article", "highlights")

    def load_dataset(*names: Any, **options: Any) -> Found:
        asked.append((*names, options["split"]))
        return Found(rows)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    data, task = Path("hub:owner/news"), Summarization(subset="3.0.0", skip_bad_lines=True)
    split = task.read(data, "valid")
    assert asked == [("owner/news", "3.0.0", "validation")]
    assert (split.name, split.ids, split.sources, split.targets, split.skipped) == (
        *("valid", ["1"], ["One is here."], ["one ."]),
        1,
    )
    with pytest.raises(UserError, match=r"hub:owner/news, line 2: field 'article' is blank"):
        Summarization().read(data, "train")
    with pytest.raises(UserError, match=r"no column source, target; its columns are: article, highlights"):
        Summarization(document_field="source", summary_field="target").read(data, "train")


def test_scores_are_rouge_of_the_best_reference() -> None:
    predictions, references = ["one .", "a"], [("two", "one ."), ("b",)]
    scores = Summarization().score(predictions, references)
    assert {name: scores[name] for name in Summarization.score_labels} == rouge(predictions, references)
    assert scores["rouge1"] == 50
    assert str(scores["rouge1_signature"]).startswith("rouge-score:")
    assert Summarization.headline(scores) == "ROUGE-1 50.00, ROUGE-2 0.00, ROUGE-L 50.00, ROUGE-Lsum 50.00"


def test_outputs_are_bounded(tmp_path: Path) -> None:
    task = Summarization(max_summary_tokens=7)
    split = task.read(_write(tmp_path), "train")
    greedy = task.greedy(split, task.tokenizer(split, 300, 48))
    assert (greedy.beams, greedy.max_tokens) == (1, 7)
    search = task.search({"min_tokens": 2, "no_repeat_ngram": 3})
    assert (search.beams, search.max_tokens, search.label) == (4, 7, "beam4.penalty0.6.min2.max7.ngram3")
    assert task.search({"max_tokens": 9}).max_tokens == 9
    for options, message in (
        ({"min_tokens": -1}, "got min_tokens=-1; expected 0 or more"),
        ({"min_tokens": 7}, "got max_tokens=7; expected more than 7"),
        ({"no_repeat_ngram": -2}, "got no_repeat_ngram=-2"),
    ):
        with pytest.raises(UserError, match=message):
            task.search(options)
    with pytest.raises(UserError, match="got max_summary_tokens=0; expected at least 1"):
        Summarization(max_summary_tokens=0)


def test_summaries_are_as_long_as_asked_and_do_not_loop(tmp_path: Path) -> None:
    task = Summarization()
    split = task.read(_write(tmp_path), "train")
    tokenizer = task.tokenizer(split, 300, 48)
    config = SynthesizerConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        num_heads=2,
        d_ff=16,
        num_layers=1,
        max_position_embeddings=48,
        synthesizer="random",
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = task.build(config).eval()
    # It would end at once, or else write one token for ever.
    head = torch.nn.Linear(16, len(tokenizer))
    torch.nn.init.zeros_(head.weight)
    word = tokenizer.convert_tokens_to_ids("e")
    head.bias.data = torch.zeros(len(tokenizer)).index_fill(0, torch.tensor([word]), 5.0)
    head.bias.data[[tokenizer.pad_token_id, tokenizer.bos_token_id]] = -9.0
    head.bias.data[tokenizer.eos_token_id] = 9.0
    cast(Any, model).lm_head = head

    def written(**options: int) -> list[int]:
        search = task.search({"max_tokens": 12, **options})
        return generate_ids(model, [np.array([5, 6, tokenizer.eos_token_id])], search)[0]

    assert written() == []
    assert written(min_tokens=8) == [word] * 8
    varied = written(min_tokens=8, no_repeat_ngram=2)
    pairs = [*itertools.pairwise(varied)]
    assert len(varied) == 8
    assert len(pairs) == len({*pairs})


def test_it_is_trained_evaluated_and_generates(tmp_path: Path) -> None:
    data, run = _write(tmp_path / "data"), tmp_path / "run"
    task = get_task("summarization").from_options({"max_summary_tokens": 6})
    settings = read_settings(synthesizer="random", preset="tiny", seed=1, overrides=[*SMALL, "steps=2"])
    lines: list[str] = []
    metrics = start_run(task=task, data=data, settings=settings, output=run, report=lines.append).metrics
    assert lines[0].startswith("train: 7 pairs, ")
    assert metrics["best"]["rougelsum"] >= 0
    results = evaluate_run(run, split="valid", beams=2, min_tokens=3, no_repeat_ngram=2)
    written = [json.loads(line) for line in Path(results["predictions"]).read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in written] == ["d0", "d1", "d2"]
    assert written[0].keys() == {"id", "document", "gold", "predicted", "score", *rouge(["a"], [["a"]])}
    for name in Summarization.score_labels:
        assert results[name] == pytest.approx(sum(row[name] for row in written) / 3)
    (examples,) = map(Path, results["files"])
    assert examples.name.endswith(".beam2.penalty0.6.min3.max6.ngram2.examples.md")
    shown = examples.read_text(encoding="utf-8")
    best = max(written, key=lambda row: row["rougel"])
    assert f"### {best['id']}: ROUGE-L {best['rougel']:.2f}" in shown.splitlines()
    assert all(text in shown for text in (written[0]["document"], *written[0]["gold"], written[0]["predicted"]))
    (line,), truncated = generate_lines(run, ["Five is a number. " * 20], beams=1, truncate=True)
    assert truncated == 1
    assert len(line) <= 6 * 8
