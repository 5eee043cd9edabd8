"""Mutated files of every task and format: read and encoded, or refused with a UserError."""

import csv
import io
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synthesizer_lab.errors import UserError
from synthesizer_lab.tasks import get_task, make_task, option_types
from synthesizer_lab.tasks.large import new_tokenizer
from tasks.glue_files import HEADERS, superglue_row, write_glue

LONG = os.environ.get("FUZZ") == "long"
# fmt: off
# Pieces of files that readers have stumbled over.
TOKENS = (
    b"\n", b"\r", b"\r\n", b"\t", b" ", b"", b'"', b'""', b",", b"\x00", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"</s>",
    b"\xe2\x80\xa8", b"\xed\xa0\x80", b"\\", b"\\ud800", b"\\uDFFF\\ud800", b"\\u0000", b"\\n", b"<br />", b"{}",
    b"0", b"-1", b"1_0", b"1e400", b"-1e-400", b"nan", b"NaN", b"Infinity", b"-Infinity", b"null", b"true", b"9" * 20,
    b"1" * 5000, b"[" * 3000, b'{"a":' * 3000, b"x" * 3000, b"\xd9\xa3", b"__SILENCE__", b"your persona:", b"\x1b[31m",
)
# What a field of JSON or YAML is replaced with.
ODD_VALUES = (
    None, True, False, 0, -1, 1, 3, 2.5, 1e300, float("inf"), float("nan"), 10**19, -(10**30), "", "x", "1_0", "\ud800",
    "é\u2028", "-1", "x" * 3000, [], [[]], ["x"], [None], [3, "x"], {}, {"x": 1}, {"": None}, "..", "/", "\x00",
)
# fmt: on

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
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """`content` after a few edits: parts cut, repeated, or replaced by `TOKENS`, a flipped bit."""
    for _ in range(draw(st.integers(1, 4))):
        # Hypothesis prefers small numbers of a large range.
        start = min(len(content), draw(st.integers(0, 100)) * len(content) // 100 + draw(st.integers(0, 50)))
        end = min(len(content), start + draw(st.sampled_from((0, 1, 1, 5, 40, 10**6))))
        kind = draw(st.sampled_from(("token", "token", "cut", "repeat", "flip")))
        if kind == "token":
            content = content[:start] + draw(st.sampled_from(TOKENS)) + content[end:]
        elif kind == "cut":
            content = content[:start] + content[end:]
        elif kind == "repeat":
            content = content[:end] + content[start:end] + content[end:]
        elif start < len(content):
            content = content[:start] + bytes([content[start] ^ 1 << draw(st.integers(0, 7))]) + content[start + 1 :]
    return content


@st.composite
def damaged_formats(draw: st.DrawFn) -> Format:
    """A format whose first file was mutated: as bytes, or a value of one of its JSON lines."""
    task, options, files = FORMATS[draw(st.sampled_from([*FORMATS]))]
    name, content = next(iter(files.items()))
    if name.endswith("jsonl") and draw(st.booleans()):
        lines = content.splitlines(keepends=True)
        number = draw(st.integers(0, len(lines) - 1))
        row = json.loads(lines[number])
        row[draw(st.sampled_from([*row]))] = draw(st.sampled_from(ODD_VALUES))
        lines[number] = f"{json.dumps(row)}\n".encode()
        content = b"".join(lines)
    else:
        content = draw(mutated(content))
    if "skip_bad_lines" in option_types(get_task(task)):
        options = {**options, "skip_bad_lines": draw(st.booleans())}
    return Format(task, options, {**files, name: content})


def _read(form: Format, data: Path) -> None:
    """All that a training does with a file before its first step."""
    task = make_task(form.task, form.options)
    split = task.records(data, "train").load()
    split.fingerprint()
    tokenizer = new_tokenizer(task, split, 300, 64)
    examples = task.encode(split, tokenizer, 64, "truncate", training=True)
    examples.lengths()
    task.collate([examples[0], examples[len(examples) - 1]], 0)
    task.config_changes(split, tokenizer)


@pytest.mark.parametrize("name", FORMATS)
def test_undamaged_files_are_read(name: str, tmp_path: Path) -> None:
    _write(FORMATS[name].files, tmp_path)
    _read(FORMATS[name], tmp_path)


# The same examples in every run of `make test`; in `make fuzz` those of --hypothesis-seed.
@settings(
    max_examples=3000 if LONG else 300,
    derandomize=not LONG,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(damaged_formats())
def test_mutated_files_are_read_or_refused(form: Format) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        _write(form.files, data)
        with suppress(UserError):
            _read(form, data)
        assert [path.name for path in Path(folder).iterdir()] == ["data"]


def _write(files: dict[str, bytes], data: Path) -> None:
    for name, content in files.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(content)
