"""GLUE and SuperGLUE: their tasks, their official files (TSV and JSON lines), and their data sets on the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import UserError
from .hub import HubDataset
from .lines import MalformedLineError, Parsed, collect, json_object, numbered_lines

HUB_NAMES: Mapping[str, str] = {"glue": "nyu-mll/glue", "superglue": "aps/super_glue"}


class NoFileError(UserError):
    """A task has no file of a split."""


@dataclass(frozen=True)
class GlueExample:
    """One example: the official index or its number from 0, texts in the order of T5's prompts, and the class or score.

    The label is None if hidden, and for ReCoRD, which has `answers`; the group is the question in MultiRC.
    """

    id: str
    texts: dict[str, str]
    label: int | float | None = None
    group: str = ""
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class GlueTask:
    """T5's name of a task, its folder, texts in the order of T5's prompts, and label words; and, of a GLUE file, the
    columns of texts (by default their names) and label, those of files without header, and if it has malformed lines.
    """

    name: str
    folder: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    columns: tuple[str, ...] = ()
    label_column: str = "label"
    headerless: tuple[str, ...] = ()
    skips_bad_lines: bool = False


def _by_name(*tasks: GlueTask) -> dict[str, GlueTask]:
    return {task.name: task for task in tasks}


_PAIR, _QUESTIONS = ("sentence1", "sentence2"), ("question1", "question2")
_ENTAILMENT = ("entailment", "not_entailment")
_TRUTH = ("False", "True")
_MNLI_LABELS = ("entailment", "neutral", "contradiction")

GLUE: Mapping[str, GlueTask] = _by_name(
    GlueTask(
        "cola",
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        headerless=("source", "label", "mark", "sentence"),
    ),
    GlueTask("sst2", "SST-2", ("sentence",), ("negative", "positive")),
    GlueTask("mrpc", "MRPC", _PAIR, ("not_equivalent", "equivalent"), ("#1 String", "#2 String"), "Quality"),
    GlueTask("stsb", "STS-B", _PAIR, (), label_column="score"),
    GlueTask(
        "qqp",
        "QQP",
        _QUESTIONS,
        ("not_duplicate", "duplicate"),
        label_column="is_duplicate",
        headerless=(*_QUESTIONS, "is_duplicate"),
        skips_bad_lines=True,
    ),
    GlueTask("mnli", "MNLI", ("hypothesis", "premise"), _MNLI_LABELS, ("sentence2", "sentence1"), "gold_label"),
    GlueTask("qnli", "QNLI", ("question", "sentence"), _ENTAILMENT),
    GlueTask("rte", "RTE", _PAIR, _ENTAILMENT),
    GlueTask("wnli", "WNLI", _PAIR, ("not_entailment", "entailment")),
)

SUPERGLUE: Mapping[str, GlueTask] = _by_name(
    GlueTask("boolq", "BoolQ", ("passage", "question"), _TRUTH),
    GlueTask("cb", "CB", ("hypothesis", "premise"), ("entailment", "contradiction", "neutral")),
    GlueTask("copa", "COPA", ("choice1", "choice2", "premise", "question"), ("choice1", "choice2")),
    GlueTask("multirc", "MultiRC", ("question", "answer", "paragraph"), _TRUTH),
    GlueTask("record", "ReCoRD", ("query", "entities", "passage"), ()),
    GlueTask("rte", "RTE", ("hypothesis", "premise"), _ENTAILMENT),
    GlueTask("wic", "WiC", ("sentence1", "sentence2", "word"), _TRUTH),
    GlueTask("wsc", "WSC", ("text", "referent"), _TRUTH),
)


def _task(suite: Mapping[str, GlueTask], name: str) -> GlueTask:
    if name not in suite:
        raise UserError(f"got unknown task {name!r}; expected one of: {', '.join(suite)}")
    return suite[name]


def glue_file(data: Path, task: str, split: str) -> Path:
    """The GLUE file of "train", "valid" or "test"; for MNLI also "valid_mismatched" and "test_mismatched".

    `data` is the folder of all tasks, the folder of this task, or the file itself. Raises NoFileError if there is none.
    """
    stem = "dev" if split == "valid" else split
    if task == "mnli" and split != "train":
        part, _, rest = split.partition("_")
        stem = f"{'dev' if part == 'valid' else part}_{rest or 'matched'}"
    return _find_file(data, GLUE, task, (f"{stem}.tsv",))


def superglue_file(data: Path, task: str, split: str) -> Path:
    """The SuperGLUE file of "train", "valid" or "test", as `glue_file`; else that of FewGLUE: train32 or dev32."""
    stems = {"train": ("train", "train32"), "valid": ("val", "dev32")}.get(split, (split,))
    path = _find_file(data, SUPERGLUE, task, tuple(f"{stem}.jsonl" for stem in stems))
    if not data.is_file() and path.name == "dev32.jsonl" and (path.parent / "train.jsonl").is_file():
        raise UserError(
            f"{path.parent}: no file val.jsonl, and dev32.jsonl cannot replace it: train.jsonl contains it. Expected "
            "val.jsonl, or train32.jsonl in place of train.jsonl, or other tasks (--set tasks=…)"
        )
    return path


def _find_file(data: Path, suite: Mapping[str, GlueTask], task: str, names: tuple[str, ...]) -> Path:
    """The first of `names` that exists in the folder of the task, or in `data` itself if that is no other task's."""
    folder = _task(suite, task).folder
    if data.is_file():
        return data
    others = {each.folder.lower() for each in suite.values()} - {folder.lower()}
    places = (data / folder,) if data.resolve().name.lower() in others else (data / folder, data)
    for path in (place / name for place in places for name in names):
        if path.is_file():
            return path
    raise NoFileError(f"{data / folder}: no file {' | '.join(names)}")


def _label(value: object, layout: GlueTask) -> int | float:
    """The class that a file writes as a label word, a number from 0, or true and false; the score of STS-B."""
    text, labels = str(value), layout.labels
    if not labels:
        try:
            score = float(text)
        except ValueError:
            raise MalformedLineError(f"got score {text!r}; expected a number") from None
        if not 0 <= score <= 5:
            raise MalformedLineError(f"got score {score}; expected 0 … 5")
        return score
    if text in labels:
        return labels.index(text)
    if isinstance(value, bool) and len(labels) == 2:
        return int(value)
    if text.isdecimal() and int(text) < len(labels):
        return int(text)
    raise MalformedLineError(f"got label {text!r}; expected one of: {', '.join(labels)}, or 0 … {len(labels) - 1}")


def read_glue(path: Path, task: str, skip_bad_lines: bool = False) -> Parsed[GlueExample]:
    """Read an official GLUE file: tab-separated values in which quotes are text, with header or without."""
    layout = _task(GLUE, task)
    columns = layout.columns or layout.texts
    lines = numbered_lines(path)
    first = next(lines)
    header = first[1].split("\t")
    if not {*columns} <= {*header}:
        if len(header) != len(layout.headerless):
            raise UserError(f"{path}: got the columns {', '.join(header)}; expected a header with {', '.join(columns)}")
        header = list(layout.headerless)
        lines = chain([first], lines)
    count = 0

    def parse(_: int, line: str) -> Iterator[GlueExample]:
        nonlocal count
        row, count = count, count + 1
        values = line.split("\t")
        if len(values) != len(header):
            raise MalformedLineError(f"got {len(values)} columns; expected {len(header)}: {', '.join(header)}")
        fields = dict(zip(header, values, strict=True))
        texts = {name: fields[column].strip() for name, column in zip(layout.texts, columns, strict=True)}
        label = fields.get(layout.label_column)
        name = fields.get("index", fields.get("id", str(row)))
        yield GlueExample(name, texts, None if label is None else _label(label, layout))

    return collect(path, lines, parse, skip_bad_lines or layout.skips_bad_lines)


def read_superglue(path: Path, task: str, skip_bad_lines: bool = False) -> Parsed[GlueExample]:
    """Read an official SuperGLUE file of JSON lines.

    MultiRC gives one example per answer, ReCoRD one per query. The `text` of WSC has the pronoun between asterisks, its
    `referent` is the noun of the label.
    """
    layout = _task(SUPERGLUE, task)
    parse_row = {"multirc": _multirc, "record": _record, "wsc": _wsc}.get(task, _plain)

    def parse(_: int, line: str) -> list[GlueExample]:
        # A list: all examples of a line, or none if one is malformed.
        return list(parse_row(_Row(json_object(line)), layout))

    return collect(path, numbered_lines(path), parse, skip_bad_lines)


class _Row:
    """A JSON object whose fields are checked for presence and type."""

    def __init__(self, values: dict[str, Any], where: str = "") -> None:
        self.values = values
        self.where = where

    def get(self, field: str, kind: type) -> Any:
        name = f"{self.where}{field}"
        if field not in self.values:
            raise MalformedLineError(f"no field {name!r}")
        value = self.values[field]
        if not isinstance(value, kind):
            raise MalformedLineError(f"field {name!r} has a {type(value).__name__}; expected {kind.__name__}")
        return value

    def text(self, field: str) -> str:
        return self.get(field, str).strip()

    def row(self, field: str) -> _Row:
        return _Row(self.get(field, dict), f"{self.where}{field}.")

    def rows(self, field: str) -> Iterator[_Row]:
        for value in self.get(field, list):
            if not isinstance(value, dict):
                kind = type(value).__name__
                raise MalformedLineError(f"field '{self.where}{field}' has a {kind}; expected objects")
            yield _Row(value, f"{self.where}{field}.")

    def label(self, layout: GlueTask) -> int | float | None:
        """The class or score; None in test files, which lack it."""
        return _label(self.values["label"], layout) if "label" in self.values else None

    def id(self) -> str:
        return str(self.get("idx", int))


def _plain(row: _Row, layout: GlueTask) -> Iterator[GlueExample]:
    yield GlueExample(row.id(), {name: row.text(name) for name in layout.texts}, row.label(layout))


def _multirc(row: _Row, layout: GlueTask) -> Iterator[GlueExample]:
    passage = row.row("passage")
    paragraph = passage.text("text")
    for question in passage.rows("questions"):
        group = f"{row.id()}.{question.id()}"
        for answer in question.rows("answers"):
            texts = {"question": question.text("question"), "answer": answer.text("text"), "paragraph": paragraph}
            yield GlueExample(f"{group}.{answer.id()}", texts, answer.label(layout), group)


def _record(row: _Row, _: GlueTask) -> Iterator[GlueExample]:
    passage = row.row("passage")
    # Offsets refer to the text as it is in the file; `end` is the last character.
    text = passage.get("text", str)
    entities = {text[span.get("start", int) : span.get("end", int) + 1] for span in passage.rows("entities")}
    for query in row.rows("qas"):
        answers = query.rows("answers") if "answers" in query.values else ()
        yield GlueExample(
            id=f"{row.id()}.{query.id()}",
            texts={"query": query.text("query"), "entities": ", ".join(sorted(entities)), "passage": text.strip()},
            answers=tuple(sorted({answer.text("text") for answer in answers})),
        )


def _wsc(row: _Row, layout: GlueTask) -> Iterator[GlueExample]:
    target = row.row("target")
    words = row.text("text").split()
    pronoun = target.text("span2_text")
    place = _nearest(words, pronoun, target.get("span2_index", int))
    starred = re.sub(rf"\b{re.escape(pronoun)}\b", f"*{pronoun}*", words[place], count=1)
    text = " ".join([*words[:place], starred, *words[place + 1 :]])
    referent = _referent(words, target.text("span1_text"), target.get("span1_index", int))
    yield GlueExample(row.id(), {"text": text, "referent": referent}, row.label(layout))


def _nearest(words: list[str], pronoun: str, index: int) -> int:
    """The word with the pronoun that is nearest to `index`, which is off by one in some official examples."""
    places = [place for place, word in enumerate(words) if re.search(rf"\b{re.escape(pronoun)}\b", word)]
    if not places:
        raise MalformedLineError(f"the text lacks the pronoun {pronoun!r}")
    return min(places, key=lambda place: abs(place - index))


def _referent(words: list[str], referent: str, index: int) -> str:
    """The noun as it is in the text: some official spans have another case or their own full stop."""
    referent = " ".join(referent.split()).rstrip(".")
    if referent and 0 <= index < len(words) and words[index][0].lower() == referent[0].lower():
        referent = words[index][0] + referent[1:]
    return referent


def read_hub_task(name: str, suite: str, task: str, split: str, revision: str | None = None) -> list[GlueExample]:
    """Read a split of a task from the data set OWNER/NAME of its suite, which writes hidden labels as −1.

    The split is "train", "valid" or "test"; for MNLI "valid_matched", "valid_mismatched" and so on.
    """
    layout = _task(GLUE if suite == "glue" else SUPERGLUE, task)
    special = _HUB_TASKS.get(task) if suite == "superglue" else None
    columns, parse = special or ((*layout.texts, "idx", "label"), _plain)
    split = f"validation{split.removeprefix('valid')}" if split.startswith("valid") else split

    def parse_row(_: int, row: tuple[Any, ...]) -> list[GlueExample]:
        fields = dict(zip(columns, row, strict=True))
        if fields.get("label") == -1:
            del fields["label"]
        return list(parse(_Row(fields), layout))

    rows = HubDataset(name, task, revision).rows(split, columns)
    return collect(f"hub:{name}", enumerate(rows), parse_row, unit="row").records


def _hub_multirc(row: _Row, layout: GlueTask) -> Iterator[GlueExample]:
    place = row.values["idx"]
    group = f"{place['paragraph']}.{place['question']}"
    texts = {name: row.text(name) for name in layout.texts}
    yield GlueExample(f"{group}.{place['answer']}", texts, row.label(layout), group)


def _hub_record(row: _Row, _: GlueTask) -> Iterator[GlueExample]:
    place = row.values["idx"]
    entities = ", ".join(sorted({*row.values["entities"]}))
    texts = {"query": row.text("query"), "entities": entities, "passage": row.text("passage")}
    answers = tuple(sorted({answer.strip() for answer in row.values["answers"]}))
    yield GlueExample(f"{place['passage']}.{place['query']}", texts, answers=answers)


def _hub_wsc(row: _Row, layout: GlueTask) -> Iterator[GlueExample]:
    yield from _wsc(_Row({**row.values, "target": row.values}), layout)


_HUB_TASKS: Mapping[str, tuple[tuple[str, ...], Callable[[_Row, GlueTask], Iterator[GlueExample]]]] = {
    "multirc": (("question", "answer", "paragraph", "idx", "label"), _hub_multirc),
    "record": (("query", "entities", "passage", "answers", "idx"), _hub_record),
    "wsc": (("text", "span1_text", "span1_index", "span2_text", "span2_index", "idx", "label"), _hub_wsc),
}
