"""The demo: the results that it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scripts import load_script


@pytest.fixture(scope="module")
def demo() -> Any:
    return load_script("demo")


def test_samples_are_marked(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for name in demo.SYNTHESIZERS:
        tests = {split: {"predictions": f"{split}.de", "scores": {"exact_match": 66.7}} for split in demo.SPLITS}
        runs.append({"row": name, "folder": f"{name}/seed-0", "tests": tests})
        (tmp_path / name / "seed-0").mkdir(parents=True)
        (tmp_path / name / "seed-0/test.de").write_text("eins\nfalsch\ndrei\n", encoding="utf-8")
    for side, lines in (("en", "one\ntwo\nthree\n"), ("de", "eins\nzwei\ndrei\n")):
        (tmp_path / f"test.{side}").write_text(lines, encoding="utf-8")
    monkeypatch.setattr(demo, "console", Console(width=80, highlight=False))
    demo.print_samples({"runs": runs}, tmp_path, tmp_path, "test")
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "vanilla 67 %, random 67 %, dense 67 %" in printed
    assert (printed.count("✓"), printed.count("✗")) == (8, 4)
