"""JSON lines of documents and summaries."""

import json
from pathlib import Path

import pytest

from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.summarization import Summarization


def _write(folder: Path, *rows: dict[str, object]) -> Path:
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_known_fields_are_found(tmp_path: Path) -> None:
    data = _write(
        tmp_path,
        {"id": "x7", "article": "Long text. Ünïcode.", "highlights": "One .\nTwo ."},
        # Sentences are joined, and several references kept.
        {"source": ["We ask.", "We answer."], "target": ["Asked.", "Answered.", " "]},
    )
    split = Summarization().read(data, "train")
    assert split.ids == ["x7", "2"]
    assert split.sources == ["Long text. Ünïcode.", "We ask. We answer."]
    assert split.references == [("One .\nTwo .",), ("Asked.", "Answered.")]


def test_fields_can_be_named_and_must_not_be_blank(tmp_path: Path) -> None:
    good = {"body": "text", "tldr": "t", "article": "no", "highlights": "no"}
    data = _write(tmp_path, good, {**good, "body": " "}, {**good, "tldr": []})
    with pytest.raises(UserError, match="line 1: no field 'text'; the fields are: body, tldr"):
        Summarization("text", "tldr").read(data, "train")
    with pytest.raises(UserError, match="line 2: field 'body' is blank"):
        Summarization("body", "tldr").read(data, "train")
    split = Summarization("body", "tldr", skip_bad_lines=True).read(data, "train")
    assert (split.sources, split.references, split.skipped) == (["text"], [("t",)], 2)
