"""Runs: started, stopped, resumed, refused."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TrainerCallback

from synthetic_attention.tasks import UserError
from synthetic_attention.tasks.translation import Translation
from synthetic_attention.training.batching import TokenBatchSampler
from synthetic_attention.training.evaluation import evaluate_run, generate_lines
from synthetic_attention.training.session import Outcome, resume_run, start_run
from synthetic_attention.training.settings import Settings
from synthetic_attention.training.trainer import SynthesizerTrainer

Small = Callable[..., Settings]


def start(corpus: Path, output: Path, settings: Settings, **options: Any) -> Outcome:
    options = {"report": lambda line: None, **options}
    return start_run(task=Translation("en", "de"), data=corpus, settings=settings, output=output, **options)


class Kill(TrainerCallback):
    """Does something at the end of one step."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step = step
        self.action = action

    def __enter__(self) -> "Kill":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step - 1:
            self.action()


class KilledError(Exception):
    pass


def die() -> None:
    raise KilledError


def weights(run: Path) -> dict[str, torch.Tensor]:
    (checkpoint,) = (run / "checkpoints").iterdir()
    return {
        **load_file(checkpoint / "model.safetensors"),
        **{f"best.{name}": value for name, value in load_file(run / "model.safetensors").items()},
    }


def without_times(path: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in entry.items() if k not in ("minutes", "tokens_per_second")} for entry in entries]


def test_a_run_holds_everything(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, lines = tmp_path / "run", []
    outcome = start(corpus, run, small(), report=lines.append)
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    assert metrics == outcome.metrics
    assert metrics["finished"]
    assert metrics["steps"] == 8
    assert metrics["tokens_per_second"] == pytest.approx(metrics["tokens"] / (60 * metrics["minutes"]))
    assert metrics["best"]["bleu"] >= metrics["last"]["bleu"]
    entries = without_times(run / "log.jsonl")
    assert [entry["step"] for entry in entries if "eval_bleu" in entry] == [4, 8]
    assert [entry["step"] for entry in entries if "loss" in entry] == [2, 4, 6, 8]
    assert any("60 pairs" in line for line in lines)
    tokenizer, model = AutoTokenizer.from_pretrained(run), AutoModelForSeq2SeqLM.from_pretrained(run)
    assert model.config.use_cache
    assert model.config.vocab_size == len(tokenizer)
    assert not [path for path in run.rglob("*") if "partial" in path.name]


def test_tokens_are_counted_without_padding(corpus: Path, tmp_path: Path, small: Small) -> None:
    settings = small("steps=7")
    outcome = start(corpus, tmp_path / "run", settings)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    total = sum(
        len(tokenizer(line)["input_ids"])
        for language in ("en", "de")
        for line in (corpus / f"train.{language}").read_text(encoding="utf-8").splitlines()
    )
    assert outcome.metrics["tokens"] == pytest.approx(total * outcome.metrics["epochs"], rel=1e-3)
    # An update sees up to 200 of them, less what did not fit.
    assert 0.6 * 7 * 200 < outcome.metrics["tokens"] <= 7 * 200


@pytest.mark.parametrize("killed_at", [3, 7])
def test_killed_and_resumed_equals_straight(corpus: Path, tmp_path: Path, small: Small, killed_at: int) -> None:
    start(corpus, tmp_path / "straight", small())
    with pytest.raises(KilledError):
        start(corpus, tmp_path / "killed", small(), watch=lambda *_: Kill(killed_at, die))
    resume_run(tmp_path / "killed", report=lambda line: None)
    straight, resumed = weights(tmp_path / "straight"), weights(tmp_path / "killed")
    assert straight.keys() == resumed.keys()
    for name, value in straight.items():
        assert torch.equal(value, resumed[name]), name
    assert without_times(tmp_path / "straight/log.jsonl") == without_times(tmp_path / "killed/log.jsonl")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_to_go_on_from(corpus: Path, tmp_path: Path, small: Small, number: int) -> None:
    run = tmp_path / "run"
    before = signal.getsignal(number)
    outcome = start(corpus, run, small(), watch=lambda *_: Kill(3, lambda: os.kill(os.getpid(), number)))
    assert signal.getsignal(number) is before
    assert outcome.signal == number
    assert not outcome.metrics["finished"]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["checkpoint-3"]
    # Not validated yet, but usable.
    assert generate_lines(run, ["one", ""], beams=1)[0][1] == ""
    resume_run(run, report=lambda line: None)
    start(corpus, tmp_path / "straight", small())
    for name, value in weights(tmp_path / "straight").items():
        assert torch.equal(value, weights(run)[name]), name


def test_a_second_signal_interrupts_at_once(corpus: Path, tmp_path: Path, small: Small) -> None:
    def twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        start(corpus, tmp_path / "run", small(), watch=lambda *_: Kill(6, twice))
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["checkpoint-4"]


def test_a_kill_while_saving_leaves_the_checkpoint_before(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = SynthesizerTrainer._save_rng_state

    def die_at_8(self: SynthesizerTrainer, folder: str) -> None:
        if self.state.global_step == 8:
            raise KilledError
        save(self, folder)

    monkeypatch.setattr(SynthesizerTrainer, "_save_rng_state", die_at_8)
    with pytest.raises(KilledError):
        start(corpus, tmp_path / "run", small())
    monkeypatch.undo()
    lines: list[str] = []
    resume_run(tmp_path / "run", report=lines.append)
    assert any("from checkpoint-4" in line for line in lines)


def test_the_best_model_by_bleu_is_kept(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([1.0, 5.0, 2.0])
    monkeypatch.setattr(SynthesizerTrainer, "_score", lambda self: {"bleu": next(scores), "chrf": 0.0})
    metrics = start(corpus, tmp_path / "run", small("steps=12")).metrics
    assert metrics["best"]["step"] == 8
    assert metrics["last"]["step"] == 12
    final = weights(tmp_path / "run")
    assert any(
        not torch.equal(value, final[f"best.{name}"]) for name, value in final.items() if f"best.{name}" in final
    )


def test_minutes_end_training_with_a_validation(corpus: Path, tmp_path: Path, small: Small) -> None:
    settings = small("eval_interval=10000").with_budget(None, 0.01)
    metrics = start(corpus, tmp_path / "run", settings).metrics
    assert 0.01 <= metrics["minutes"] < 0.1
    assert metrics["last"]["step"] == metrics["steps"] > 0
    with pytest.raises(UserError, match="the run is complete"):
        resume_run(tmp_path / "run", minutes=0.01)
    further = resume_run(tmp_path / "run", steps=metrics["steps"] + 2, report=lambda line: None).metrics
    assert further["steps"] == metrics["steps"] + 2


def test_resuming_with_other_settings_or_data_is_refused(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    start(corpus, run, small("steps=1"))
    with pytest.raises(UserError, match=r"got seed 4, but .* was started with 3"):
        resume_run(run, expected={"seed": 4}, steps=2)
    other.mkdir()
    for path in corpus.iterdir():
        (other / path.name).write_text(path.read_text(encoding="utf-8").replace("one", "two"), encoding="utf-8")
    with pytest.raises(UserError, match="the train data is not what"):
        resume_run(run, data=other, steps=2)
    with pytest.raises(UserError, match="no run"):
        resume_run(other, steps=2)


def test_what_is_there_is_not_overwritten_unasked(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, settings = tmp_path / "run", small("steps=1")
    start(corpus, run, settings)
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="--resume continues it, --overwrite replaces it"):
        start(corpus, run, settings)
    with pytest.raises(UserError, match="no such folder"):
        start(tmp_path / "nowhere", run, settings, overwrite=True)
    assert (run / "model.safetensors").read_bytes() == before
    start(corpus, run, replace(settings, seed=9), overwrite=True)
    assert (run / "model.safetensors").read_bytes() != before
    with pytest.raises(UserError, match="has files and is no run"):
        start(corpus, corpus, settings, overwrite=True)
    with pytest.raises(UserError, match="not a folder"):
        start(corpus, run / "run.yaml", settings, overwrite=True)


def test_a_diverging_loss_is_said(corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    step = SynthesizerTrainer.training_step
    monkeypatch.setattr(SynthesizerTrainer, "training_step", lambda self, *args: step(self, *args) * float("nan"))
    with pytest.raises(UserError, match="training diverged: the loss is nan at step 2; lower learning_rate"):
        start(corpus, tmp_path / "run", small())


def test_accumulation_equals_one_large_batch(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of an update over two unequal batches is that of the two together, if dropout is off."""
    options, rows = ("dropout_rate=0", "steps=3", "log_interval=1"), list(range(60))
    monkeypatch.setattr(TokenBatchSampler, "_epoch", lambda self, epoch: [rows])
    start(corpus, tmp_path / "one", small(*options))
    monkeypatch.setattr(TokenBatchSampler, "_epoch", lambda self, epoch: [rows[:11], rows[11:]])
    start(corpus, tmp_path / "two", small(*options, "gradient_accumulation_steps=2"))
    losses = [[e["loss"] for e in without_times(tmp_path / n / "log.jsonl") if "loss" in e] for n in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_evaluation_scores_and_writes_predictions(corpus: Path, tmp_path: Path, small: Small) -> None:
    run = tmp_path / "run"
    start(corpus, run, small("steps=2"))
    results = evaluate_run(run, beams=2)
    assert results["sentences"] == 6
    predictions = Path(results["predictions"]).read_text(encoding="utf-8").splitlines()
    sources = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    assert generate_lines(run, sources, beams=2)[0] == predictions
    with pytest.raises(UserError, match=r"2 of 2 lines .* the maximum of 64 tokens"):
        generate_lines(run, ["one " * 99] * 2)
    assert generate_lines(run, ["one " * 99, "two"], beams=1, truncate=True)[1] == 1
    with pytest.raises(UserError, match="got 0 beams"):
        generate_lines(run, ["one"], beams=0)
    (run / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be loaded"):
        generate_lines(run, ["one"])
