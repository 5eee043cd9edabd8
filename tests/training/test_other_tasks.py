"""Training, evaluation and the command line know nothing of translation: a task of another kind goes through them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from synthetic_attention.tasks import UserError
from synthetic_attention.training.evaluation import evaluate_run
from synthetic_attention.training.run import resume_run, start_run
from synthetic_attention.training.trainer import TokenBatchSampler
from training.counting import Counting, known
from training.runs import Kill, KilledError, Small, assert_same_runs, die, generate_lines, silent


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with known():
        yield


@pytest.fixture(scope="module")
def file(corpus: Path) -> Path:
    return corpus / "train.en"


def test_a_language_model_is_trained_resumed_and_scored(file: Path, tmp_path: Path, small: Small) -> None:
    run, straight = tmp_path / "run", tmp_path / "straight"
    with pytest.raises(KilledError):
        start_run(task=Counting(), data=file, settings=small(), output=run, report=silent, callbacks=[Kill(7, die)])
    metrics = resume_run(run, report=silent).metrics
    start_run(task=Counting(), data=file, settings=small(), output=straight, report=silent)
    assert_same_runs(straight, run)
    task = Counting()
    train = task.read(file, "train")
    examples = task.encode(train, task.train_tokenizer(train, 300, 64), 64)
    batches = TokenBatchSampler(examples, budget=200, seed=3, num_batches=8)
    assert metrics["tokens"] == sum(examples.lengths()[batch].sum() for batch in batches)
    results = evaluate_run(run, split="valid")
    assert results["perplexity"] == pytest.approx(metrics["best"]["perplexity"])
    assert np.exp(results["loss"]) == pytest.approx(results["perplexity"])
    with pytest.raises(UserError, match="got --num-beams, but task counting generates no text; leave it out"):
        evaluate_run(run, num_beams=4)
    with pytest.raises(UserError, match="a run of task counting gives no text for a line"):
        generate_lines(run, ["one"])
