"""Mutated files of every task and format: read and encoded, or refused with a UserError."""

import csv
import gzip
import io
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.harness import DIGITS, fuzzed, misshapen, mutated, time_limit
from synthesizer_lab.errors import UserError
from synthesizer_lab.tasks import get_task
from tasks.glue_files import HEADERS, superglue_row, write_glue

WORDS = ("the", "tea", "of", "rain", "and", "bread", "in", "wind", "at", "a", "stone", "by", "river", "under")
LINES = [" ".join(WORDS[number : number + 6]) for number in range(8)] * 4


class Format(NamedTuple):
    """A task with its options, and the files of a split, of which the first is mutated."""

    task: str
    options: dict[str, Any]
    files: dict[str, bytes]


def _rows(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=number % 2 == 0) + "\n" for number, row in enumerate(rows)).encode()


def _table(rows: list[tuple[str, ...]], **dialect: Any) -> bytes:
    file = io.StringIO()
    csv.writer(file, **dialect).writerows(rows)
    return file.getvalue().encode()


def _formats() -> dict[str, Format]:
    text = "".join(f"{line}\n" for line in LINES).encode()
    persona = "".join(
        f"{n % 4 + 1} " + (f"{a}\t{a}\n" if n % 4 else f"your persona: {a}\n") for n, a in enumerate(LINES)
    )
    table = [("text", "label"), *((line, str(number % 2)) for number, line in enumerate(LINES))]
    pairs = [{"id": n, "sentence1": a, "sentence2": a, "label": n / 4} for n, a in enumerate(LINES)]
    turns = [{"history": [a, "__SILENCE__", a], "reply": [a, a], "persona": a} for a in LINES]
    summaries = [{"article": [a, a], "highlights": a} for a in LINES]
    classes = {"regression": True}
    formats = {
        "parallel": Format("translation", {"source": "en", "target": "de"}, {"train.en": text, "train.de": text}),
        "sentences": Format("language-modeling", {}, {"train.txt": text}),
        "blocks": Format("language-modeling", {"mode": "blocks"}, {"train.txt": text}),
        "documents": Format("span-corruption", {"sentinels": 9}, {"train.jsonl": _rows(*({"text": a} for a in LINES))}),
        "summaries": Format("summarization", {}, {"train.jsonl": _rows(*summaries)}),
        "convai2": Format("dialogue", {}, {"train.txt": persona.encode()}),
        "dialogue": Format("dialogue", {}, {"train.jsonl": _rows(*turns)}),
        "csv": Format("classification", {}, {"train.csv": _table(table)}),
        "tsv": Format("classification", {}, {"train.tsv": _table(table, delimiter="\t", quoting=csv.QUOTE_NONE)}),
        "scores": Format("classification", classes, {"train.jsonl": _rows(*pairs)}),
    }
    with tempfile.TemporaryDirectory() as folder:
        write_glue(Path(folder))
        for name, (place, _) in HEADERS.items():
            path = Path(place, "train.tsv")
            formats[name] = Format("glue", {"tasks": name}, {str(path): (folder / path).read_bytes()})
    places = {"boolq": "BoolQ", "cb": "CB", "copa": "COPA", "multirc": "MultiRC", "record": "ReCoRD", "wic": "WiC"}
    for name, place in {**places, "wsc": "WSC"}.items():
        rows = _rows(*(superglue_row(name, number) for number in range(12)))
        formats[name] = Format("superglue", {"tasks": name}, {f"{place}/train.jsonl": rows})
    return formats


FORMATS = _formats()


@st.composite
def damaged_formats(draw: st.DrawFn) -> Format:
    """A format whose first file was mutated: as bytes, or the values of one of its JSON lines; maybe with gzip."""
    task, options, files = FORMATS[draw(st.sampled_from([*FORMATS]))]
    name, content = next(iter(files.items()))
    if name.endswith("jsonl") and draw(st.booleans()):
        lines = content.splitlines(keepends=True)
        number = draw(st.integers(0, len(lines) - 1))
        line = json.dumps(draw(misshapen(json.loads(lines[number])))).replace(f'"{DIGITS}"', "1" * 5000)
        lines[number] = f"{line}\n".encode()
        content = b"".join(lines)
    else:
        content = draw(mutated(content))
    renamed = name
    if task not in ("glue", "superglue", "translation") and draw(st.integers(0, 4)) == 0:
        renamed, content = f"{name}.gz", gzip.compress(content, mtime=0)
        if draw(st.booleans()):
            content = draw(mutated(content))
    if "skip_bad_lines" in get_task(task).option_types():
        options = {**options, "skip_bad_lines": draw(st.booleans())}
    return Format(task, options, {renamed: content, **{key: files[key] for key in files if key != name}})


def _read(form: Format, data: Path) -> None:
    """All that a training does with a file before its first step."""
    task = get_task(form.task).from_options(form.options)
    split = task.read(data, "train")
    split.fingerprint()
    tokenizer = task.train_tokenizer(split, 300, 64)
    examples = task.encode(split, tokenizer, 64, "truncate", training=True)
    examples.lengths()
    task.collate([examples[0], examples[len(examples) - 1]], 0)
    task.config_changes(split, tokenizer)


@pytest.mark.parametrize("name", FORMATS)
def test_undamaged_files_are_read(name: str, tmp_path: Path) -> None:
    _write(FORMATS[name].files, tmp_path)
    _read(FORMATS[name], tmp_path)


@given(damaged_formats())
@fuzzed(300, 3000)
def test_mutated_files_are_read_or_refused(form: Format) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        _write(form.files, data)
        with time_limit(20):
            with suppress(UserError):
                _read(form, data)
            assert [path.name for path in Path(folder).iterdir()] == ["data"]


def _write(files: dict[str, bytes], data: Path) -> None:
    for name, content in files.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(content)
