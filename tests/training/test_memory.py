"""The peak memory of a process does not grow with the number of steps or of generated texts."""

import resource
from pathlib import Path

import pytest

from synthesizer_lab.training.evaluation import generate_chunks
from training.runs import Kill, Small, start


def _peak() -> float:
    """In MiB; the kernel counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.slow
def test_peak_memory_is_flat_over_2000_steps_and_500_generations(corpus: Path, tmp_path: Path, small: Small) -> None:
    peaks: list[float] = []
    settings = small("max_steps=2000", "eval_steps=200", "logging_steps=20", "average_checkpoints=3")
    # After two validations everything was used once.
    start(corpus, tmp_path / "run", settings, callbacks=[Kill(500, lambda: peaks.append(_peak()))])
    assert _peak() - peaks[0] < 20
    lines = ["a cup of tea and a piece of bread"]
    for number, _ in enumerate(generate_chunks(tmp_path / "run", [lines] * 500, num_beams=2)):
        if number == 50:
            peaks.append(_peak())
    assert _peak() - peaks[1] < 20
