"""The demo: that it finds its own results among others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts import load_script


@pytest.fixture(scope="module")
def demo() -> Any:
    return load_script("demo")


def test_predictions_are_those_of_the_scores(demo: Any, tmp_path: Path) -> None:
    fingerprint = {"source": "abc", "lines": 3}
    wanted = {"beams": 1, "length_penalty": 0.6, "fingerprint": fingerprint, "dtype": "float32"}
    results = {"search": {"beams": 1, "length_penalty": 0.6}, "tests": {"test": fingerprint}}
    with pytest.raises(SystemExit, match="no predictions of test"):
        demo.find_predictions(tmp_path, "test", results)
    others: dict[str, dict[str, Any]] = {
        "test.1": {"beams": 4},
        "test.2": {"dtype": "bfloat16"},
        "test.4": {"fingerprint": {"source": "d"}},
    }
    for name, changes in {**others, "test.3": {}, "test_templates.0": {}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**wanted, **changes}))
    assert demo.find_predictions(tmp_path, "test", results) == tmp_path / "test.3.de"


def test_a_command_that_fails_ends_the_demo_with_its_status(demo: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        demo.synthesizer("nothing")
    assert ended.value.code == 2
