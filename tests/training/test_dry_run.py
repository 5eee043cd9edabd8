"""What a run would cost: the numbers agree with those of the run, and nothing is written."""

from pathlib import Path

import pytest

from synthetic_attention.models import SynthesizerConfig, SynthesizerForConditionalGeneration
from synthetic_attention.tasks.translation import Translation
from synthetic_attention.training import dry_run as module
from synthetic_attention.training.dry_run import count_parameters, describe_dry_run, dry_run
from training.runs import Small, silent, snapshot, start


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEPS", 4)


def test_what_is_said_is_what_comes(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = snapshot(corpus)
    settings = small("max_steps=40", "eval_steps=40", "gradient_accumulation_steps=2")
    plan = dry_run(Translation("en", "de"), corpus, settings, report=silent)
    assert [*tmp_path.iterdir()] == []
    assert snapshot(corpus) == before
    assert (plan["steps"], plan["measured_steps"], plan["examples"]) == (40, 4, 60)
    assert plan["seconds"] == pytest.approx(
        40 * 2 * plan["tokens_per_epoch"] / plan["batches_per_epoch"] / plan["tokens_per_second"]
    )
    metrics = start(corpus, tmp_path / "run", settings).metrics
    assert plan["trainable"] == metrics["parameters"]
    # The first batch of each pass is cut at random.
    assert plan["epochs"] == pytest.approx(metrics["epochs"], rel=0.1)
    text = describe_dry_run(plan)
    assert "60 pairs" in text
    assert "40 steps of 2 batches" in text
    assert "without validation" in text


def test_minutes_end_training_too(corpus: Path, small: Small) -> None:
    plan = dry_run(Translation("en", "de"), corpus, small().with_budget(None, 0.5), report=silent)
    assert plan["seconds"] == pytest.approx(30, rel=0.05)
    both = dry_run(Translation("en", "de"), corpus, small().with_budget(3, 0.5), report=silent)
    assert both["steps"] == 3


def test_parameters_of_synthesizers_are_those_of_the_paper() -> None:
    """Its Table 1, with biases off: vanilla 2d², dense d² + dN, random H·N², in each layer of self-attention."""
    d, heads, n = 12, 3, 7
    expected = {"vanilla": 2 * d * d, "dense": d * d + d * n, "random": heads * n * n, "fixed_random": 0}
    sizes = {"vocab_size": 11, "d_model": d, "num_heads": heads, "d_ff": 5, "max_position_embeddings": n}
    for name, count in expected.items():
        layers = {"num_layers": 2, "num_decoder_layers": 1}
        config = SynthesizerConfig(synthesizer=name, use_bias=False, **sizes, **layers)
        counted = count_parameters(SynthesizerForConditionalGeneration(config))
        assert counted["in_synthesizers"] == 3 * count, name
