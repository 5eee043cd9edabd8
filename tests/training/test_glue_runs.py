"""Runs of GLUE and of classification go on after a kill as if there had been none."""

from pathlib import Path
from typing import Any

import pytest

from synthetic_attention.tasks.classification import Classification
from synthetic_attention.tasks.glue import Glue
from synthetic_attention.training.run import resume_run, start_run
from tasks.glue_files import write_glue
from training.runs import Kill, KilledError, Small, assert_same_runs, die, silent

# They are scored with the packages of the extra "glue".
pytest.importorskip("scipy.stats", reason="scipy is not installed")
pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


@pytest.mark.parametrize(
    "task",
    [
        Glue(tasks=["sst2", "rte"], cap=7),
        Classification(text="sentence1", text_pair="sentence2", label="score", regression=True),
    ],
    ids=["glue", "classification"],
)
def test_killed_and_resumed_equals_straight(task: Any, tmp_path: Path, small: Small) -> None:
    data = write_glue(tmp_path / "data", tasks=("sst2", "rte", "stsb"))
    data = data / "STS-B" if isinstance(task, Classification) else data
    common = {"task": task, "data": data, "settings": small("dropout_rate=0.1"), "report": silent}
    start_run(output=tmp_path / "straight", **common)
    with pytest.raises(KilledError):
        start_run(output=tmp_path / "killed", callbacks=[Kill(7, die)], **common)
    resume_run(tmp_path / "killed", report=silent)
    assert_same_runs(tmp_path / "straight", tmp_path / "killed")
