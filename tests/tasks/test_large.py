"""Training text in windows, from a memory-mapped table or streamed, for every task of text."""

import gzip
import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synthesizer_lab.data.sampler import TokenBatchSampler
from synthesizer_lab.errors import UserError
from synthesizer_lab.tasks import get_task, large
from synthesizer_lab.tasks.base import Task
from synthesizer_lab.tasks.large import LargeSplit, encode_large, new_tokenizer
from synthesizer_lab.training.arguments import SynthesizerTrainingArguments
from synthesizer_lab.training.run import read_splits
from synthesizer_lab.training.settings import read_task_options

LINES = [f"{'yes and ' * (number % 5)}line {number} is {number * number}" for number in range(300)]
MAXIMUM = 40
# Options of each task; of the last two the examples are cut from running text.
TASKS: dict[str, dict[str, Any]] = {
    "translation": {"source": "en", "target": "de"},
    "summarization": {"skip_bad_lines": True},
    "dialogue": {},
    "classification": {"ignored_labels": ["2"]},
    "language-modeling": {},
    "blocks": {"mode": "blocks"},
    "span-corruption": {"skip_bad_lines": True, "sentinels": 20},
}


def _task(name: str) -> Task[Any, Any]:
    return get_task("language-modeling" if name == "blocks" else name).from_options(TASKS[name])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each task; validation data is training data."""
    home = tmp_path_factory.mktemp("data")
    rows = [json.dumps({"article": line, "highlights": f"it is {line}", "text": line}) for line in LINES]
    rows[20:20] = ["{", '{"article": 1}']
    turns = [f"{number % 4 + 1} {line}\tyes , {line}" for number, line in enumerate(LINES)]
    labeled = ["label,text", *(f"{number % 3},{line}" for number, line in enumerate(LINES))]
    files = {
        "translation/{}.en": ["", *LINES],
        "translation/{}.de": ["nothing", *LINES[::-1]],
        "summarization/{}.jsonl.gz": rows,
        "dialogue/{}.txt": turns,
        "classification/{}.csv": labeled,
        "language-modeling/{}.txt": LINES,
        "blocks/{}.txt": LINES,
        "span-corruption/{}.jsonl": rows,
    }
    for name, lines in files.items():
        for split in ("train", "valid"):
            path = home / name.format(split)
            path.parent.mkdir(exist_ok=True)
            text = "".join(f"{line}\n" for line in lines).encode()
            path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return home


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "tables")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(large, "_BLOCK", 300)
    monkeypatch.setattr(large, "_WINDOW_TOKENS", 700)
    monkeypatch.setattr(large, "_WINDOW_BLOCKS", 4)


def _arguments(streaming: bool, **options: Any) -> SynthesizerTrainingArguments:
    return SynthesizerTrainingArguments(max_steps=1, streaming=streaming, **{"tokenizer_characters": 3000, **options})


def _training_split(task: Task[Any, Any], data: Path, arguments: SynthesizerTrainingArguments) -> LargeSplit:
    split = read_splits(task, data, arguments)["train"]
    assert isinstance(split, LargeSplit)
    return split


def _examples(name: str, data: Path, streaming: bool, lines: Any = None) -> tuple[Task[Any, Any], Any, Any]:
    """The task, its tokenizer and its examples of training."""
    task = _task(name)
    split = _training_split(task, data / name, _arguments(streaming))
    report = (lines if lines is not None else []).append
    tokenizer = new_tokenizer(task, split, 300, MAXIMUM, report)
    return task, tokenizer, encode_large(split, tokenizer, MAXIMUM, "drop", report)


def _content(item: Any) -> Any:
    return tuple(tuple(part.tolist()) if isinstance(part, np.ndarray) else part for part in item)


def _windows(examples: Any, epoch: int = 0) -> list[tuple[int, Any]]:
    return [*examples.windows(3, epoch)]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", TASKS)
def test_the_windows_have_the_examples_of_the_whole_text(name: str, streaming: bool, data: Path) -> None:
    task, tokenizer, examples = _examples(name, data, streaming)
    windows = _windows(examples)
    assert len(windows) > 4
    whole = task.encode(task.read(data / name, "train"), tokenizer, MAXIMUM, "drop", training=True)
    found = [window[index] for _, window in windows for index in range(len(window))]
    expected = [whole[index] for index in range(len(whole))]
    if name in ("blocks", "span-corruption"):
        # Parts, or windows, are cut by themselves.
        assert len(expected) - len(windows) <= len(found) <= len(expected) + 4 * len(windows)
    else:
        assert Counter(map(_content, found)) == Counter(map(_content, expected))
        assert (list(map(_content, found)) == list(map(_content, expected))) is streaming
    if not streaming:
        assert (examples.dropped, examples.truncated, examples.skipped) == (whole.dropped, 0, whole.skipped)
        assert examples.tokens_per_pass() == pytest.approx(whole.tokens_per_pass(), rel=0.15)
        order, later = ([position for position, _ in _windows(examples, epoch)] for epoch in (0, 0))
        assert order == later
        assert _content(_windows(examples, 1)[0][1][0]) != _content(windows[0][1][0])


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", TASKS)
def test_the_stream_of_batches_goes_on_where_it_was(name: str, streaming: bool, data: Path) -> None:
    _, _, examples = _examples(name, data, streaming)

    def batches(count: int, sampler: TokenBatchSampler) -> list[Any]:
        return [[_content(window[index]) for window, index in batch] for batch in islice(sampler, count)]

    first = TokenBatchSampler(examples, 200, seed=1, num_batches=150)
    expected = batches(150, first)
    for start in (0, 7, 90, 149):
        before = TokenBatchSampler(examples, 200, seed=1, num_batches=150)
        batches(start + 1, before)
        place = before.place(start)
        assert place.batches <= start < place.batches + 40
        assert (place.epoch, place.position) > (0, 0) or start < 40
        assert batches(150 - start, TokenBatchSampler(examples, 200, 1, 150, start, place)) == expected[start:]


def test_text_is_read_and_tokenized_once(data: Path, tmp_path: Path) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.suffix in (".arrow", ".json")}

    lines: list[str] = []
    _, tokenizer, examples = _examples("translation", data, False, lines)
    assert [line.split(":")[0] for line in lines] == ["train"] * 3
    assert "a tokenizer trained on 3,000 of " in lines[0]
    written = times()
    _, again, same = _examples("translation", data, False)
    assert times() == written
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    for (_, one), (_, other) in zip(_windows(examples), _windows(same), strict=True):
        assert _content(one[0]) == _content(other[0])
    # What is left of a table is not read.
    (table,) = (path for path in written if path.suffix == ".arrow")
    table.write_bytes(table.read_bytes()[:700])
    with pytest.raises(UserError, match=r"tables.*tokens-"):
        _examples("translation", data, False)


def test_small_text_stays_in_memory_and_has_the_same_fingerprint(data: Path) -> None:
    for name in TASKS:
        task = _task(name)
        small = read_splits(task, data / name, _arguments(False, tokenizer_characters=10**6))["train"]
        parts = _training_split(task, data / name, _arguments(False))
        assert not isinstance(small, LargeSplit)
        assert parts.fingerprint() == small.fingerprint()
        assert len(parts) >= len(small)


def test_streaming_reads_only_what_it_needs(tmp_path: Path) -> None:
    for language in ("en", "de"):
        (tmp_path / f"valid.{language}").write_text("a\n")
        # The bad line is never reached.
        (tmp_path / f"train.{language}").write_bytes("".join(f"{line}\n" for line in LINES * 9).encode() + b"\xff\n")
    task = _task("translation")
    split = _training_split(task, tmp_path, _arguments(True))
    fingerprint = split.fingerprint()
    assert "train.en" in str(fingerprint["streamed"])
    tokenizer = new_tokenizer(task, split, 300, MAXIMUM)
    examples = encode_large(split, tokenizer, MAXIMUM, "drop", print)
    assert examples.tokens_per_pass() is None
    assert len(next(examples.windows(0, 0))[1]) > 10
    with pytest.raises(UserError, match=r"train\.en, line 2701: byte 0xff"):
        _windows(examples)


@pytest.mark.parametrize("streaming", [False, True])
def test_no_example_is_an_error(tmp_path: Path, streaming: bool) -> None:
    task = _task("span-corruption")
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text("yes\n" * 30)
    split = _training_split(task, tmp_path, _arguments(streaming, tokenizer_characters=50))
    tokenizer = new_tokenizer(task, split, 300, 200)
    with pytest.raises(UserError, match="no example is left"):
        next(iter(TokenBatchSampler(encode_large(split, tokenizer, 200, "drop", print), 500, 1, 5)))


def test_what_cannot_be_streamed_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes((data / "classification/train.csv").read_bytes())
    with pytest.raises(UserError, match=r"--streaming.*validation"):
        read_splits(_task("classification"), tmp_path, _arguments(True))
    with pytest.raises(UserError, match=r"--streaming.*glue"):
        read_splits(get_task("glue")(), tmp_path, _arguments(True))


@pytest.mark.parametrize("option", [False, True])
def test_runs_with_the_former_option_can_be_opened(option: bool) -> None:
    for name in ("language-modeling", "span-corruption"):
        task = get_task(name)
        assert task.from_options({"stream": option}) == task()
        with pytest.raises(UserError, match="got stream, an option of older versions"):
            read_task_options(task, [f"stream={option}"])
