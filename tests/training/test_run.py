"""Runs: what they hold, when they end, what is said when they fail."""

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.translation import Translation
from synthesizer_lab.training.run import resume_run
from training.runs import Kill, Small, assert_same_runs, die, full_disk, logged, silent, start, weights, without_times

LAYER = "model.encoder.layers.0.self_attn"


def test_a_run_holds_everything(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, lines = tmp_path / "run", []
    outcome = start(corpus, run, small("warmup_steps=20"), report=lines.append)
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
    assert any("8 steps are fewer than warmup_steps, 20" in line for line in lines)
    tokenizer, model = AutoTokenizer.from_pretrained(run), AutoModelForSeq2SeqLM.from_pretrained(run)
    assert model.config.use_cache
    assert model.config.vocab_size == len(tokenizer)
    assert not [path for path in run.rglob("*") if "partial" in path.name]


def test_the_best_model_by_bleu_is_kept(corpus: Path, tmp_path: Path, small: Small, straight: Path) -> None:
    scores = iter([1.0, 5.0, 2.0])

    class Scored(Translation):
        def validate(self, *args: Any) -> dict[str, float | str]:
            return {"bleu": next(scores), "chrf": 0.0}

    metrics = start(corpus, tmp_path / "run", small("max_steps=12"), task=Scored("en", "de")).metrics
    assert metrics["best"]["step"] == 8
    assert metrics["last"]["step"] == 12
    final = weights(tmp_path / "run")
    for name, value in load_file(straight / "checkpoints/checkpoint-8/model.safetensors").items():
        assert torch.equal(value, final[f"best.{name}"]), name


def test_minutes_end_training_with_a_validation(corpus: Path, tmp_path: Path, small: Small) -> None:
    metrics = start(corpus, tmp_path / "run", small("eval_steps=10000").with_budget(None, 0.005)).metrics
    assert metrics["minutes"] >= 0.005
    assert metrics["last"]["step"] == metrics["steps"] > 0
    assert metrics["finished"]
    with pytest.raises(UserError, match="the run is complete"):
        resume_run(tmp_path / "run", minutes=0.005)
    further = resume_run(tmp_path / "run", max_steps=metrics["steps"] + 2, report=silent).metrics
    assert further["steps"] == metrics["steps"] + 2


def test_a_model_that_diverged_is_never_the_best(corpus: Path, tmp_path: Path, small: Small) -> None:
    class Break(Kill):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 7:
                with torch.no_grad():
                    kwargs["model"].get_parameter(f"{LAYER}.v_proj.weight")[0, 0] = float("nan")

    run = tmp_path / "run"
    with pytest.raises(UserError, match="training diverged: the loss is nan at step 8; lower learning_rate"):
        start(corpus, run, small(), callbacks=[Break(0, die)])
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["checkpoint-4"]
    assert all(value.isfinite().all() for value in load_file(run / "model.safetensors").values())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), r"No space left on device; --resume continues from checkpoint-4"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), r"out of memory; .* batch_tokens \(now 200\)"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory; .* checkpoint-4"),
        (torch._dynamo.exc.TorchDynamoException("no compiler"), "torch.compile failed: no compiler; leave out"),
        (RuntimeError("a bug"), "^a bug$"),
    ],
)
def test_a_full_disk_and_too_little_memory_are_said_and_other_errors_pass(
    corpus: Path, tmp_path: Path, small: Small, error: Exception, message: str
) -> None:
    def fail() -> None:
        raise error

    callback, ended = Kill(6, fail), list[Any]()
    callback.on_train_end = lambda args, *others, **named: ended.append(args)
    with pytest.raises(type(error) if "bug" in message else UserError, match=message):
        start(corpus, tmp_path / "run", small(), callbacks=[callback])
    # A progress bar ends its line before the message.
    assert ended


def test_a_full_disk_keeps_the_last_checkpoint(corpus: Path, tmp_path: Path, small: Small, straight: Path) -> None:
    run, (checkpoint,) = tmp_path / "run", (straight / "checkpoints").iterdir()
    size = (checkpoint / "optimizer.pt").stat().st_size

    class Full(Kill):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 6:
                disk.enter_context(full_disk(size - 1))

    with ExitStack() as disk, pytest.raises(UserError, match=r"checkpoint-8 cannot be written: .*from checkpoint-4$"):
        start(corpus, run, small(), callbacks=[Full(0, die)])
    resume_run(run, report=silent)
    assert_same_runs(straight, run)


def test_accumulation_equals_one_large_batch(corpus: Path, tmp_path: Path, small: Small) -> None:
    """The loss of an update over two unequal batches is that of the two together, if dropout is off."""
    lines, options = list[str](), ("dropout_rate=0", "max_steps=3", "logging_steps=1")
    start(corpus, tmp_path / "one", small(*options, "batch_tokens=1000000000"), report=lines.append)
    (tokens,) = (line.split()[3].replace(",", "") for line in lines if line.startswith("train: 60 pairs"))
    # A pass has two batches: the first has a random size.
    start(corpus, tmp_path / "two", small(*options, f"batch_tokens={tokens}", "gradient_accumulation_steps=2"))
    assert logged(tmp_path / "one", "tokens") == logged(tmp_path / "two", "tokens")
    assert logged(tmp_path / "one", "loss") == pytest.approx(logged(tmp_path / "two", "loss"), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("run.yaml", "run.yaml cannot be loaded"),
        ("tokenizer.json", "the tokenizer cannot be loaded"),
        *(
            (f"checkpoints/checkpoint-8/{name}", "the checkpoint cannot be loaded")
            for name in ("progress.json", "model.safetensors", "optimizer.pt", "rng_state.pth")
        ),
    ],
)
def test_a_damaged_file_is_named(straight: Path, tmp_path: Path, name: str, message: str) -> None:
    run = shutil.copytree(straight, tmp_path / "run")
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=rf"^{run}.*{message}: .") as error:
        resume_run(run, max_steps=9, report=silent)
    assert "\n" not in str(error.value)
