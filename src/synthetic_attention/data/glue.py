"""GLUE's official files: tab-separated values in which quotes are text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .benchmark import BenchmarkTask, Example, find_file, label_index
from .lines import MalformedLineError, Parsed, collect, numbered_lines

__all__ = ["GLUE", "GlueTask", "glue_file", "read_glue"]


@dataclass(frozen=True)
class GlueTask(BenchmarkTask):
    """A task of GLUE.

    Args:
        columns: the column of each of `texts`.
        label_column: the column of the label; test files lack it.
        headerless: the columns of a file without header.
        skips_bad_lines: the official files have malformed lines, which are left out and counted.
    """

    columns: tuple[str, ...]
    label_column: str = "label"
    headerless: tuple[str, ...] = ()
    skips_bad_lines: bool = False


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")

GLUE: Mapping[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask(
            "cola",
            "CoLA",
            ("sentence",),
            ("unacceptable", "acceptable"),
            ("sentence",),
            headerless=("source", "label", "mark", "sentence"),
        ),
        GlueTask("sst2", "SST-2", ("sentence",), ("negative", "positive"), ("sentence",)),
        GlueTask("mrpc", "MRPC", _PAIR, ("not_equivalent", "equivalent"), ("#1 String", "#2 String"), "Quality"),
        GlueTask("stsb", "STS-B", _PAIR, (), _PAIR, "score"),
        GlueTask(
            "qqp",
            "QQP",
            ("question1", "question2"),
            ("not_duplicate", "duplicate"),
            ("question1", "question2"),
            "is_duplicate",
            headerless=("question1", "question2", "is_duplicate"),
            skips_bad_lines=True,
        ),
        GlueTask(
            "mnli",
            "MNLI",
            ("hypothesis", "premise"),
            ("entailment", "neutral", "contradiction"),
            ("sentence2", "sentence1"),
            "gold_label",
        ),
        GlueTask("qnli", "QNLI", ("question", "sentence"), _ENTAILMENT, ("question", "sentence")),
        GlueTask("rte", "RTE", _PAIR, _ENTAILMENT, _PAIR),
        GlueTask("wnli", "WNLI", _PAIR, ("not_entailment", "entailment"), _PAIR),
    )
}


def glue_file(data: Path, task: str, split: str) -> Path:
    """The official file of a split: "train", "valid", "test"; of MNLI also "valid_mismatched" and "test_mismatched".

    Args:
        data: the folder of all tasks, that of this task, or the file itself.

    Raises:
        NoFileError: there is no such file.
        UserError: there is no such task.
    """
    stem = "dev" if split == "valid" else split
    if task == "mnli" and split != "train":
        part, _, rest = split.partition("_")
        stem = f"{'dev' if part == 'valid' else part}_{rest or 'matched'}"
    return find_file(data, _task(task).folder, (f"{stem}.tsv",), [each.folder for each in GLUE.values()])


def read_glue(path: Path, task: str, skip_bad_lines: bool = False) -> Parsed[Example]:
    """Read an official file: with header, or, where the task has such files, without.

    Args:
        task: a key of `GLUE`.
        skip_bad_lines: leave malformed lines out and count them. Those of QQP always are: the official file has some.

    Raises:
        UserError: the file cannot be read, lacks a column, or has a malformed line.
    """
    layout = _task(task)
    lines = numbered_lines(path)
    number, first = next(lines)
    header = first.split("\t")
    wanted = layout.columns
    if not {*wanted} <= {*header}:
        if len(header) != len(layout.headerless):
            raise UserError(f"{path}: got the columns {', '.join(header)}; expected a header with {', '.join(wanted)}")
        header = list(layout.headerless)
        lines = _again(number, first, lines)
    parse = _parser(layout, header)
    return collect(path, lines, parse, skip_bad_lines or layout.skips_bad_lines)


def _task(name: str) -> GlueTask:
    if name not in GLUE:
        raise UserError(f"got unknown task of GLUE {name!r}; expected one of: {', '.join(GLUE)}")
    return GLUE[name]


def _again(number: int, first: str, rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield number, first
    yield from rest


def _parser(layout: GlueTask, header: list[str]) -> Callable[[int, str], Iterator[Example]]:
    """Make an example of a line of a file with the columns `header`."""
    rows = 0

    def parse(_: int, line: str) -> Iterator[Example]:
        nonlocal rows
        row, rows = rows, rows + 1
        values = line.split("\t")
        if len(values) != len(header):
            raise MalformedLineError(f"got {len(values)} columns; expected {len(header)}: {', '.join(header)}")
        fields = dict(zip(header, values, strict=True))
        texts = {name: fields[column].strip() for name, column in zip(layout.texts, layout.columns, strict=True)}
        label = fields.get(layout.label_column)
        yield Example(
            id=fields.get("index", fields.get("id", str(row))),
            texts=texts,
            label=None if label is None else _label(label, layout),
        )

    return parse


def _label(text: str, layout: GlueTask) -> int | float:
    if layout.labels:
        return label_index(text, layout.labels)
    try:
        score = float(text)
    except ValueError:
        raise MalformedLineError(f"got score {text!r}; expected a number") from None
    if not 0 <= score <= 5:
        raise MalformedLineError(f"got score {score}; expected 0 … 5")
    return score
