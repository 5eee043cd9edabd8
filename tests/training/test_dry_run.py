"""What a run would cost: the numbers agree with those of the run, and nothing is written."""

from pathlib import Path

import pytest

from synthesizer_lab.tasks.translation import Translation
from synthesizer_lab.training.run import describe_dry_run, dry_run
from training.runs import Small, silent, snapshot, start


def test_what_is_said_is_what_comes(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = snapshot(corpus)
    settings = small("max_steps=40", "eval_steps=40", "gradient_accumulation_steps=2")
    plan = dry_run(Translation("en", "de"), corpus, settings, report=silent)
    assert [*tmp_path.iterdir()] == []
    assert snapshot(corpus) == before
    assert (plan["steps"], plan["measured_steps"], plan["examples"]) == (40, 50, 60)
    tokens = plan["epochs"] * plan["tokens_per_epoch"]
    assert plan["seconds"] == pytest.approx(tokens / plan["tokens_per_second"])
    metrics = start(corpus, tmp_path / "run", settings).metrics
    assert plan["parameters"] == metrics["parameters"]
    # The first batch of each pass is cut at random.
    assert plan["epochs"] == pytest.approx(metrics["epochs"], rel=0.1)
    text = describe_dry_run(plan)
    assert "60 pairs" in text
    assert f"40 steps of {plan['tokens_per_step']} tokens" in text
    assert "without validation" in text


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_memory_of_the_device(device: str, corpus: Path, small: Small) -> None:
    plan = dry_run(Translation("en", "de"), corpus, small("bf16=true"), device=device, report=silent)
    # Weights, gradients, and AdamW's two states.
    assert plan["peak_bytes"] > 16 * plan["parameters"]
    assert f"{plan['peak_bytes'] / 1e6:,.0f} MB" in describe_dry_run(plan)
