"""Rows of local files and of the hub, whose library is replaced by one that needs no network; records in windows."""

import gzip
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synthesizer_lab.data.corpus import Corpus, standard_library_data
from synthesizer_lab.data.files import MalformedLineError
from synthesizer_lab.data.records import Records, ahead
from synthesizer_lab.data.source import NoSplitError, Source, is_hub_name
from synthesizer_lab.errors import UserError
from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthesizer_lab.tasks.large import LargeSplit, encode_large, new_tokenizer
from synthesizer_lab.tasks.span_corruption import SpanCorruption
from synthesizer_lab.tasks.summarization import Summarization
from synthesizer_lab.training.arguments import SynthesizerTrainingArguments
from synthesizer_lab.training.run import read_splits

HUB = Path("hub:owner/name")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A hub with one data set; it records what it is asked for."""
    fake = SimpleNamespace(calls=[])
    rows = [{"text": f"text {number}\n", "id": number, "article": "a b", "highlights": "a"} for number in range(5)]

    def load_dataset(name: str, subset: str | None, **options: Any) -> Any:
        fake.calls.append((name, subset, options))
        if name != "owner/name":
            raise FileNotFoundError(f"no data set\n{name}")
        if options["split"] not in ("train", "validation"):
            raise ValueError(f"Unknown split {options['split']!r}")
        return type("Rows", (list,), {"column_names": [*rows[0]], "data": SimpleNamespace(nbytes=10**9)})(rows)

    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", load_dataset)
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
    with pytest.raises(UserError, match=r"hub:no/other, split 'train'.*no data set no/other"):
        [*Source.of(Path("hub:no/other"), "train").rows()]
    for name in ("hub:", "hub:csv", "hub:a/b/c", "hub:/b"):
        with pytest.raises(UserError, match="hub:OWNER/NAME"):
            Source.of(Path(name), "train")


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"hub:owner/name.* needs datasets.*\[train\]"):
        [*Source.of(HUB, "train").rows()]


@pytest.mark.usefixtures("hub")
def test_malformed_rows_of_the_hub() -> None:
    split = Summarization().read(HUB, "train")
    assert (split.ids[4], split.sources[4], split.references[4]) == ("4", "a b", ("a",))
    with pytest.raises(UserError, match=r"hub:owner/name, split 'train', row 1: .*'id'.*skip_bad_lines"):
        Summarization("id", "text").read(HUB, "train")
    # No advice to use an option that the task does not have.
    with pytest.raises(UserError, match=r"row 1: field 'id': got int; expected text, or a list of texts$"):
        LanguageModeling(column="id").read(HUB, "train")


@pytest.mark.usefixtures("hub")
def test_large_text_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = LanguageModeling()
    splits = read_splits(task, HUB, SynthesizerTrainingArguments(max_steps=1))
    assert len(splits["valid"]) == 5
    train = splits["train"]
    assert isinstance(train, LargeSplit)
    examples = encode_large(train, new_tokenizer(task, train, 300, 64), 64, "error", print)
    assert len(examples) == 5


def test_lines_of_files(tmp_path: Path) -> None:
    (tmp_path / "train-1.txt").write_text("a.txt one\n\nthree\n", encoding="utf-8")
    (tmp_path / "train-2.txt.gz").write_bytes(gzip.compress("\ufeffzwei\r\nvier".encode()))
    split, expected = (
        LanguageModeling(mode="blocks").read(tmp_path, "train"),
        ["a.txt one", "", "three", "zwei", "vier"],
    )
    assert split.texts == expected
    digest = hashlib.sha256("\n".join(expected).encode()).hexdigest()
    assert split.fingerprint() == {"split": "train", "texts": 5, "sha256": digest}
    assert LanguageModeling(max_documents=3).read(tmp_path, "train").texts == ["a.txt one", "three", "zwei"]
    (tmp_path / "train-1.txt").write_text("\n \n")
    (tmp_path / "train-2.txt.gz").unlink()
    with pytest.raises(UserError, match=r"train-1\.txt: there is no text"):
        LanguageModeling().read(tmp_path, "train")


def test_documents_of_json_lines(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": " one "}, {"article": ["two", "three"]}, {"text": ""}]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert SpanCorruption().read(tmp_path, "train").texts == ["one", "two three"]
    with pytest.raises(UserError, match=r"train\.jsonl, line 2: no field 'text'; .*article"):
        SpanCorruption(text_field="text").read(tmp_path, "train")
    for line, fact in (('{"text": 1}', "got int; expected text, or a list of texts;"), ("{", r"not JSON \(.*\);")):
        path.write_text(line)
        with pytest.raises(UserError, match=rf"train\.jsonl, line 1: .*{fact}"):
            SpanCorruption().read(tmp_path, "train")
    with pytest.raises(UserError, match=r"train\.jsonl: there is no text; .*\(1 malformed\)"):
        SpanCorruption(skip_bad_lines=True).read(tmp_path, "train")


def test_bad_lines_are_named_or_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("2\n3\n6\n")

    def even(_: int, line: str) -> Iterator[int]:
        if int(line) % 2:
            raise MalformedLineError("odd")
        yield int(line)

    source = Source("train", (tmp_path / "a.txt",))
    assert [*source.parse(even, True)] == [2, None, 6]
    with pytest.raises(UserError, match=r"a\.txt, line 2: odd; correct it, or train with --set skip_bad_lines=true"):
        [*source.parse(even, False)]


def test_windows_of_records() -> None:
    rows = ["abc", ("de", ("f", "g")), None, "hijk", "l"]
    records = Records(Source("train"), lambda: iter(rows), Corpus)
    assert [*records.windows(4)] == [(0, rows[:2]), (2, rows[2:4]), (4, rows[4:])]


def test_items_are_computed_ahead() -> None:
    def items() -> Iterator[int]:
        yield from range(9)
        raise UserError("bad")

    found = ahead(items())
    assert [next(found) for _ in range(9)] == [*range(9)]
    with pytest.raises(UserError, match="bad"):
        next(found)


def test_the_standard_library_is_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = standard_library_data()
    assert folder == standard_library_data()
    texts = {split: (folder / f"{split}.txt").read_text("utf-8") for split in ("train", "valid", "test")}
    assert len(texts["train"]) > 5 * len(texts["valid"]) > 10_000
    assert all("import " in text and text.endswith("\n\n") for text in texts.values())
