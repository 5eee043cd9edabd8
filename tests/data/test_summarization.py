"""JSON lines of documents and summaries."""

import gzip
import json
from pathlib import Path

import pytest

from synthesizer_lab.data.files import Parsed
from synthesizer_lab.data.summarization import read_summaries
from synthesizer_lab.tasks import UserError


def _write(path: Path, *rows: dict[str, object]) -> Path:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_known_fields_are_found(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "a.jsonl.gz",
        {"id": "x7", "article": "Long text. Ünïcode.", "highlights": "One .\nTwo ."},
        # Sentences are joined, and several references kept.
        {"source": ["We ask.", "We answer."], "target": ["Asked.", "Answered.", " "]},
    )
    one, two = Parsed.of(read_summaries(path)).records
    assert (one.id, one.document, one.references) == ("x7", "Long text. Ünïcode.", ("One .\nTwo .",))
    assert (two.id, two.document, two.references) == ("2", "We ask. We answer.", ("Asked.", "Answered."))


def test_fields_can_be_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", {"body": "text", "tldr": "t", "article": "no", "highlights": "no"})
    (row,) = Parsed.of(read_summaries(path, "body", "tldr")).records
    assert (row.document, row.references) == ("text", ("t",))
    assert Parsed.of(read_summaries(path, "body")).records[0].references == ("no",)
    with pytest.raises(UserError, match="line 1: no field 'text'; the fields are: body, tldr"):
        Parsed.of(read_summaries(path, "text", "tldr"))


def test_blank_sides_are_malformed(tmp_path: Path) -> None:
    good = {"document": "d", "summary": "s"}
    path = _write(tmp_path / "b.jsonl", good, {"document": " ", "summary": "s"}, {"document": "d", "summary": []})
    with pytest.raises(UserError, match="line 2: field 'document' is blank"):
        Parsed.of(read_summaries(path))
    assert Parsed.of(read_summaries(path, skip_bad_lines=True)).skipped == 2
