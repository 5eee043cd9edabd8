"""What a run would cost: the numbers agree with those of the run, and nothing is written."""

import re
from pathlib import Path

import pytest

from synthesizer_lab.tasks.translation import Translation
from synthesizer_lab.training.run import dry_run
from training.runs import Small, silent, snapshot, start


def numbers(text: str, pattern: str) -> list[float]:
    """The numbers of a text where the pattern has #."""
    found = re.search(pattern.replace("#", r"([\d,.]+)"), text)
    assert found is not None, text
    return [float(number.replace(",", "")) for number in found.groups()]


def test_what_is_said_is_what_comes(
    corpus: Path, tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = snapshot(corpus)
    few, many = (small(f"max_steps={n}", "eval_steps=40", "gradient_accumulation_steps=2") for n in (40, 4000))
    text = dry_run(Translation("en", "de"), corpus, many, report=silent)
    assert [*tmp_path.iterdir()] == []
    assert snapshot(corpus) == before
    examples, per_epoch = numbers(text, "# pairs, # source . target tokens")
    speed, measured = numbers(text, "speed +# .*over # steps")
    steps, per_step, epochs = numbers(text, "# steps of # tokens, # epochs")
    assert (steps, measured, examples) == (4000, 50, 60)
    assert epochs == pytest.approx(steps * per_step / per_epoch, rel=2e-3)
    minutes, seconds = numbers(text, "time +#:#, without validation")
    assert 60 * minutes + seconds == pytest.approx(steps * per_step / speed, abs=1, rel=1e-3)
    metrics = start(corpus, tmp_path / "run", few).metrics
    assert numbers(text, "parameters +#") == [metrics["parameters"]]
    # The first batch of each pass is cut at random.
    assert epochs / 100 == pytest.approx(metrics["epochs"], rel=0.1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_memory_of_the_device(device: str, corpus: Path, small: Small) -> None:
    text = dry_run(Translation("en", "de"), corpus, small("bf16=true"), device=device, report=silent)
    # Weights, gradients, and AdamW's two states.
    assert numbers(text, "# MB at most")[0] * 1e6 > 16 * numbers(text, "parameters +#")[0]
