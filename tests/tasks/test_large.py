"""Training text that is not held in memory, for every task of text."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synthesizer_lab.data import source
from synthesizer_lab.data.source import Records
from synthesizer_lab.errors import UserError
from synthesizer_lab.tasks import get_task, make_task
from synthesizer_lab.tasks.base import Task
from synthesizer_lab.tasks.large import encode_large, new_tokenizer
from synthesizer_lab.training.options import TrainingOptions
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
    "lines": {"skip_bad_lines": True, "sentinels": 20},
}


def _task(name: str) -> Task:
    return make_task({"blocks": "language-modeling", "lines": "span-corruption"}.get(name, name), TASKS[name])


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
        "lines/{}.txt": rows,
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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "_BLOCK", 300)


def _training_split(task: Task, data: Path, characters: int = 3000) -> Records:
    split = read_splits(task, data, TrainingOptions(max_steps=1, tokenizer_characters=characters))["train"]
    assert isinstance(split, Records)
    return split


def _examples(name: str, data: Path, report: Any = print) -> tuple[Task, Any, Any]:
    """The task, its tokenizer and its examples of training."""
    task = _task(name)
    split = _training_split(task, data / name)
    tokenizer = new_tokenizer(task, split, 300, MAXIMUM, 3000, report)
    return task, tokenizer, encode_large(task, split, tokenizer, MAXIMUM, "drop", report)


def _content(item: Any) -> Any:
    return tuple(tuple(part.tolist()) if isinstance(part, np.ndarray) else part for part in item)


@pytest.mark.parametrize("name", TASKS)
def test_the_examples_are_those_of_the_whole_text(name: str, data: Path) -> None:
    task, tokenizer, examples = _examples(name, data)
    whole = task.encode(task.records(data / name, "train").load(), tokenizer, MAXIMUM, "drop", training=True)
    if name == "blocks":
        # Parts are cut by themselves.
        assert len(whole) <= len(examples) <= 2 * len(whole)
    else:
        assert [*map(_content, examples.items())] == [*map(_content, whole.items())]
    assert (examples.dropped, examples.truncated, examples.skipped) == (whole.dropped, 0, whole.skipped)
    assert examples.tokens_per_pass() == pytest.approx(whole.tokens_per_pass(), rel=0.15)


def test_text_is_read_and_tokenized_once(data: Path, tmp_path: Path) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    lines: list[str] = []
    _, tokenizer, examples = _examples("translation", data, lines.append)
    assert [line.split(":")[0] for line in lines] == ["train"] * 3
    assert "a tokenizer trained on 3,000 of " in lines[0]
    written = times()
    _, again, same = _examples("translation", data)
    assert times() == written
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert [*map(_content, same.items())] == [*map(_content, examples.items())]
    # A part of a file is not read.
    (tokens,) = (path for path in written if path.name == "tokens")
    tokens.write_bytes(tokens.read_bytes()[:700])
    with pytest.raises(UserError, match=r"tokens-.*delete it"):
        _examples("translation", data)


def test_small_text_stays_in_memory_and_has_the_same_fingerprint(data: Path) -> None:
    # What a file is called, and whether a tenth of it is held out, makes another text of the same bytes.
    for name in (*TASKS, "classification/train.csv"):
        task = _task(name.partition("/")[0])
        small = read_splits(task, data / name, TrainingOptions(max_steps=1, tokenizer_characters=10**6))["train"]
        parts = _training_split(task, data / name)
        assert not isinstance(small, Records)
        assert parts.fingerprint() == small.fingerprint()
        assert parts.summary["records"] >= len(small)


def test_one_long_line_has_a_sample(tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text("valid")
    (tmp_path / "train.txt").write_text("yes " * 3000)
    assert [*map(len, _training_split(_task("blocks"), tmp_path).sample(1000))] == [1000]


def test_errors_name_the_line(tmp_path: Path) -> None:
    for language in ("en", "de"):
        lines = [*LINES, "long " * 50, *LINES]
        for name in ("train", "valid"):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines))
    task = _task("translation")
    split = _training_split(task, tmp_path)
    tokenizer = new_tokenizer(task, split, 300, MAXIMUM, 3000)
    with pytest.raises(UserError, match=r"train\.en: 1 of .*the first is line 301,"):
        encode_large(task, split, tokenizer, MAXIMUM, "error", print)


def test_no_example_is_an_error(tmp_path: Path) -> None:
    task = _task("span-corruption")
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text("yes\n" * 30)
    split = _training_split(task, tmp_path, 50)
    tokenizer = new_tokenizer(task, split, 300, 200, 50)
    with pytest.raises(UserError, match="no example is left"):
        encode_large(task, split, tokenizer, 200, "drop", print)
    (tmp_path / "valid.txt").write_text("\n\n")
    with pytest.raises(UserError, match=r"valid\.txt: there is no text"):
        _training_split(task, tmp_path, 50)
    (tmp_path / "train.txt").write_text("\n\n")
    with pytest.raises(UserError, match=r"train\.txt: there is no text"):
        task.records(tmp_path, "train").head()


def test_runs_with_the_former_option_can_be_opened() -> None:
    for name in ("language-modeling", "span-corruption"):
        assert make_task(name, {"stream": True}) == make_task(name, {})
        with pytest.raises(UserError, match="got stream, an option of older versions"):
            read_task_options(get_task(name), ["stream=True"])
