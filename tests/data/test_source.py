"""Rows of local files and of the hub, whose library is replaced by one that needs no network; records in windows."""

import gzip
import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synthesizer_lab.data.files import standard_library_data
from synthesizer_lab.data.source import Source, is_hub_name
from synthesizer_lab.errors import NoSplitError, UserError
from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthesizer_lab.tasks.span_corruption import SpanCorruption
from synthesizer_lab.tasks.summarization import Summarization

HUB = Path("hub:owner/name")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A hub with one data set; it records what it is asked for."""
    fake, datasets = SimpleNamespace(calls=[]), pytest.importorskip("datasets")
    rows = [{"text": f"text {number}\n", "id": number, "article": "a b", "highlights": "a"} for number in range(5)]

    def load_dataset(name: str, subset: str | None, **options: Any) -> Any:
        fake.calls.append((name, subset, options))
        if name == "owner/mixed":
            raise datasets.exceptions.DatasetGenerationError("an error") from TypeError("columns differ")
        if name != "owner/name":
            raise FileNotFoundError(f"no data set\n{name}")
        if options["split"] not in ("train", "validation"):
            raise ValueError(f"Unknown split {options['split']!r}")
        return type("Rows", (list,), {"column_names": [*rows[0]], "data": SimpleNamespace(nbytes=10**9)})(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return fake


def test_rows_of_the_hub(hub: SimpleNamespace) -> None:
    assert is_hub_name(HUB)
    assert not is_hub_name(Path("owner/name"))
    source = Source.of(HUB, "valid", (), "small", "v1")
    assert [row["text"] for row in source.rows(["text"])] == [f"text {number}\n" for number in range(5)]
    assert hub.calls == [("owner/name", "small", {"split": "validation", "revision": "v1"})]
    with pytest.raises(UserError, match=r"owner/name.*body.*text, id"):
        [*Source.of(HUB, "train").rows(["body"])]
    with pytest.raises(NoSplitError, match=r"owner/name.*'best'"):
        [*Source.of(HUB, "best").rows()]
    for name, reason in (("no/other", "no data set no/other"), ("owner/mixed", "columns differ")):
        with pytest.raises(UserError, match=f"hub:{name}, split 'train'.*{reason}"):
            [*Source.of(Path(f"hub:{name}"), "train").rows()]
    for name in ("hub:", "hub:csv", "hub:a/b/c", "hub:/b"):
        with pytest.raises(UserError, match="hub:OWNER/NAME"):
            Source.of(Path(name), "train")


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"hub:owner/name.* needs datasets.*\[train\]"):
        [*Source.of(HUB, "train").rows()]


@pytest.mark.usefixtures("hub")
def test_malformed_rows_of_the_hub() -> None:
    split = Summarization().records(HUB, "train").load()
    assert (split.ids[4], split.sources[4], split.references[4]) == ("4", "a b", ("a",))
    with pytest.raises(UserError, match=r"hub:owner/name, split 'train', row 1: .*'id'.*skip-bad-lines"):
        Summarization("id", "text").records(HUB, "train").load()
    # No advice to use an option that the task does not have.
    with pytest.raises(UserError, match=r"row 1: field 'id': got int; expected text, or a list of texts$"):
        LanguageModeling(column="id").records(HUB, "train").load()


def test_lines_of_files(tmp_path: Path) -> None:
    (tmp_path / "train-1.txt").write_text("a.txt one\n\nthree\n", encoding="utf-8")
    (tmp_path / "train-2.txt.gz").write_bytes(gzip.compress("\ufeffzwei\r\nvier".encode()))
    split = LanguageModeling(mode="blocks").records(tmp_path, "train").load()
    expected = ["a.txt one", "", "three", "zwei", "vier"]
    assert split.texts == expected
    digest = hashlib.sha256("\n".join(expected).encode()).hexdigest()
    assert split.fingerprint() == {"split": "train", "texts": 5, "sha256": digest}
    assert LanguageModeling(max_documents=3).records(tmp_path, "train").load().texts == ["a.txt one", "three", "zwei"]


def test_documents_of_json_lines(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": " one "}, {"article": ["two", "three"]}, {"text": ""}]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert SpanCorruption().records(tmp_path, "train").load().texts == ["one", "two three"]
    with pytest.raises(UserError, match=r"train\.jsonl, line 2: no field 'text'; .*article"):
        SpanCorruption(text_field="text").records(tmp_path, "train").load()
    path.write_text("{")
    with pytest.raises(UserError, match=r"train\.jsonl, line 1: .*not JSON \(.*\);"):
        SpanCorruption().records(tmp_path, "train").load()
    with pytest.raises(UserError, match=r"train\.jsonl: there is no text; .*\(1 malformed\)"):
        SpanCorruption(skip_bad_lines=True).records(tmp_path, "train").load()


def test_the_standard_library_is_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = standard_library_data()
    assert folder == standard_library_data()
    texts = {split: (folder / f"{split}.txt").read_text("utf-8") for split in ("train", "valid", "test")}
    assert len(texts["train"]) > 5 * len(texts["valid"]) > 10_000
    assert all("import " in text and text.endswith("\n\n") for text in texts.values())
