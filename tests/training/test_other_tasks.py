"""Tasks other than translation: killed and resumed runs equal straight ones, and are scored."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from synthesizer_lab.data import source
from synthesizer_lab.data.examples import TokenBatchSampler
from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.glue import Glue
from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthesizer_lab.tasks.large import new_tokenizer
from synthesizer_lab.tasks.translation import Translation
from synthesizer_lab.training.evaluation import evaluate_run
from synthesizer_lab.training.run import resume_run
from synthesizer_lab.training.settings import Settings
from tasks.glue_files import write_glue
from training.runs import Small, assert_same_runs, silent, start, start_and_kill


def _resumed(task: Any, data: Path, settings: Settings, folder: Path) -> dict[str, Any]:
    """The metrics of a run that was killed and resumed, which is compared with one that was not."""
    start(data, folder / "straight", settings, task=task)
    start_and_kill(data, folder / "killed", settings, 7, task=task)
    metrics = resume_run(folder / "killed", report=silent).metrics
    assert_same_runs(folder / "straight", folder / "killed")
    return metrics


def test_a_mixture_of_tasks(tmp_path: Path, small: Small) -> None:
    pytest.importorskip("scipy.stats", reason="scipy is not installed")
    pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    data = write_glue(tmp_path / "data", tasks=("sst2", "rte"))
    _resumed(Glue(tasks=["sst2", "rte"], cap=7), data, small("dropout_rate=0.1"), tmp_path)
    assert ModelCard.load(tmp_path / "killed" / "README.md").data.language == ["en"]


def test_large_text(corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "_BLOCK", 300)
    options = ("tokenizer_characters=1000", "dropout_rate=0.1")
    assert _resumed(Translation("en", "de"), corpus, small(*options), tmp_path)["train_examples"] == 60


def test_a_language_model(corpus: Path, tmp_path: Path, small: Small) -> None:
    task = LanguageModeling(train_files="train.en", valid_files="valid.en")
    metrics = _resumed(task, corpus, small(), tmp_path)
    train = task.records(corpus, "train").load()
    examples = task.encode(train, new_tokenizer(task, train, 300, 64), 64, training=True)
    batches = TokenBatchSampler(examples, budget=200, seed=3, num_batches=8)
    assert metrics["tokens"] == sum(examples.lengths()[index].sum() for batch in batches for index in batch)
    results = evaluate_run(tmp_path / "killed", split="valid")
    assert results["perplexity"] == pytest.approx(metrics["best"]["perplexity"])
    with pytest.raises(UserError, match="got --num-beams, but task language-modeling generates no text; leave it out"):
        evaluate_run(tmp_path / "killed", num_beams=4)
