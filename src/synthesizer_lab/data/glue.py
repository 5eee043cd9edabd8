"""GLUE and SuperGLUE: their tasks, their official files (TSV and JSON lines), and their data sets on the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import MalformedLineError, as_number, json_object, numbered_lines, parse_lines
from .source import Source

HUB_NAMES: Mapping[str, str] = {"glue": "nyu-mll/glue", "superglue": "aps/super_glue"}


@dataclass(frozen=True)
class GlueTask:
    """A task of a suite: T5's name, the official folder, texts in the order of T5's prompts, and label words.

    Args:
        metrics: the official scores, by the names in results.
        columns, label_column: the columns of texts (by default their names) and of the label in a GLUE file.
        headerless: the columns of a file without header.
    """

    suite: str
    name: str
    folder: str
    metrics: tuple[str, ...]
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    columns: tuple[str, ...] = ()
    label_column: str = "label"
    headerless: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name with the suite, "superglue/rte"."""
        return f"{self.suite}/{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """What the task may be called: T5's name, the folder in lower case, the name with the suite."""
        return self.name, self.folder.lower(), self.key

    def subsets(self, split: str) -> tuple[str, ...]:
        """The parts of a split with separate files and scores: ("",) except for validation and test of MNLI."""
        return ("matched", "mismatched") if self.name == "mnli" and split != "train" else ("",)


@dataclass(frozen=True)
class GlueExample:
    """One example: the official index or its number from 0, texts in the order of T5's prompts, and the class or score.

    The label is None if hidden, and for ReCoRD, which has `answers`; the group is the question in MultiRC.
    """

    task: GlueTask
    id: str
    texts: dict[str, str]
    label: int | float | None = None
    group: str = ""
    answers: tuple[str, ...] = ()
    subset: str = ""

    @property
    def is_labeled(self) -> bool:
        """Whether the correct output is known: test files hide it."""
        return self.label is not None or bool(self.answers)


_PAIR, _QUESTIONS = ("sentence1", "sentence2"), ("question1", "question2")
_ENTAILMENT, _SAME = ("entailment", "not_entailment"), ("not_duplicate", "duplicate")
_MNLI, _CB = ("entailment", "neutral", "contradiction"), ("entailment", "contradiction", "neutral")
_TRUTH, _CHOICES = ("False", "True"), ("choice1", "choice2")
_HYPOTHESIS, _STRINGS = ("hypothesis", "premise"), ("#1 String", "#2 String")
_COLA = ("source", "label", "mark", "sentence")
_ACCURACY, _F1 = ("accuracy",), ("f1", "accuracy")
_TASKS = (
    GlueTask("glue", "cola", "CoLA", ("matthews",), ("sentence",), ("unacceptable", "acceptable"), headerless=_COLA),
    GlueTask("glue", "sst2", "SST-2", _ACCURACY, ("sentence",), ("negative", "positive")),
    GlueTask("glue", "mrpc", "MRPC", _F1, _PAIR, ("not_equivalent", "equivalent"), _STRINGS, "Quality"),
    GlueTask("glue", "stsb", "STS-B", ("pearson", "spearman"), _PAIR, (), label_column="score"),
    GlueTask("glue", "qqp", "QQP", _F1, _QUESTIONS, _SAME, (), "is_duplicate", (*_QUESTIONS, "is_duplicate")),
    GlueTask("glue", "mnli", "MNLI", _ACCURACY, _HYPOTHESIS, _MNLI, ("sentence2", "sentence1"), "gold_label"),
    GlueTask("glue", "qnli", "QNLI", _ACCURACY, ("question", "sentence"), _ENTAILMENT),
    GlueTask("glue", "rte", "RTE", _ACCURACY, _PAIR, _ENTAILMENT),
    GlueTask("glue", "wnli", "WNLI", _ACCURACY, _PAIR, ("not_entailment", "entailment")),
    GlueTask("superglue", "boolq", "BoolQ", _ACCURACY, ("passage", "question"), _TRUTH),
    GlueTask("superglue", "cb", "CB", _F1, _HYPOTHESIS, _CB),
    GlueTask("superglue", "copa", "COPA", _ACCURACY, (*_CHOICES, "premise", "question"), _CHOICES),
    GlueTask("superglue", "multirc", "MultiRC", ("f1a", "exact_match"), ("question", "answer", "paragraph"), _TRUTH),
    GlueTask("superglue", "record", "ReCoRD", ("f1", "exact_match"), ("query", "entities", "passage"), ()),
    GlueTask("superglue", "rte", "RTE", _ACCURACY, _HYPOTHESIS, _ENTAILMENT),
    GlueTask("superglue", "wic", "WiC", _ACCURACY, (*_PAIR, "word"), _TRUTH),
    GlueTask("superglue", "wsc", "WSC", _ACCURACY, ("text", "referent"), _TRUTH),
)
SUITES: Mapping[str, Mapping[str, GlueTask]] = {
    suite: {task.name: task for task in _TASKS if task.suite == suite} for suite in HUB_NAMES
}


def task_files(data: Path, task: GlueTask, split: str) -> dict[str, Path]:
    """The official files of "train", "valid" or "test" by subset; empty if there are none.

    SuperGLUE's train.jsonl and val.jsonl may be replaced by FewGLUE's train32.jsonl and dev32.jsonl. `data` is the
    folder of the suites, that of the tasks, or that of this task.
    """
    stems = {"train": ("train", "train32"), "valid": ("val", "dev32")}.get(split, (split,))
    names = {"": [f"{stem}.jsonl" for stem in stems]}
    if task.suite == "glue":
        stem = "dev" if split == "valid" else split
        names = {subset: [f"{stem}_{subset}.tsv" if subset else f"{stem}.tsv"] for subset in task.subsets(split)}
    own = [data] if data.resolve().name.lower() in task.names else []
    for folder in (data / task.suite / task.folder, data / task.folder, *own):
        files = {path.name: path for path in folder.glob("*.*")}
        if "train.jsonl" in files:
            # It contains the examples of dev32.jsonl.
            files.pop("dev32.jsonl", None)
        # The first of several names comes last, and stays.
        if found := {subset: files[name] for subset in names for name in names[subset][::-1] if name in files}:
            return found
    return {}


def read_file(
    path: Path, task: GlueTask, subset: str = "", skip_bad_lines: bool = False
) -> Iterator[GlueExample | None]:
    """Read an official file: JSON lines of SuperGLUE, tab-separated values of GLUE, in which quotes are text.

    MultiRC gives an example per answer, ReCoRD one per query. WSC's `referent` is the noun that the label is about.
    """
    lines = numbered_lines(path)
    if task.suite == "superglue":
        flatten = NESTED.get(task.name, lambda row: iter([row]))

        # A list: all examples of a line, or none if one is malformed.
        def parse_nested(number: int, nested: dict[str, Any]) -> list[GlueExample]:
            return [_example(task, row, number) for row in flatten(nested)]

        return parse_lines(path, lines, parse_nested, skip_bad_lines, decode=json_object)
    columns = task.columns or task.texts
    start, first = next(lines, (1, ""))
    header = first.split("\t")
    if {*columns} <= {*header}:
        start += 1
    elif len(header) == len(task.headerless):
        header, lines = [*task.headerless], chain([(start, first)], lines)
    else:
        raise UserError(f"{path}: got the columns {', '.join(header)}; expected a header with {', '.join(columns)}")
    ours = {**dict(zip(columns, task.texts, strict=True)), task.label_column: "label", "index": "idx", "id": "idx"}

    def parse(number: int, line: str) -> list[GlueExample]:
        values = line.split("\t")
        if len(values) != len(header):
            raise MalformedLineError(f"got {len(values)} columns; expected {len(header)}: {', '.join(header)}")
        row = {ours.get(name, name): value for name, value in zip(header, values, strict=True)}
        return [_example(task, row, number - start, subset)]

    # The official file of QQP has malformed lines.
    return parse_lines(path, lines, parse, skip_bad_lines or task.name == "qqp")


def read_hub(source: Source, task: GlueTask, subset: str = "") -> Iterator[GlueExample | None]:
    """Read a split of a task from the data set of its suite on the hub, which writes hidden labels as −1."""

    def parse(number: int, row: dict[str, Any]) -> list[GlueExample]:
        row = {key: value for key, value in row.items() if (key, value) != ("label", -1)}
        return [_example(task, row, number, subset)]

    return parse_lines(str(source), enumerate(source.rows(["idx"])), parse, None, "row")


def _get(row: Any, name: str, kind: type) -> Any:
    """A field of a JSON object; MalformedLineError if it is missing or has another type."""
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, kind):
        raise MalformedLineError(f"field {name!r}: got {type(value).__name__}; expected {kind.__name__}")
    return value


def _text(row: Any, name: str) -> str:
    return str(_get(row, name, str)).strip()


def _label(task: GlueTask, row: Mapping[str, Any]) -> int | float | None:
    """The class, which files write as a label word or a number from 0; the score of STS-B; None if hidden."""
    if "label" not in row:
        return None
    # JSON's true is "True".
    text, labels = str(row["label"]), task.labels
    if not labels:
        score = as_number(text)
        if score is None or not 0 <= score <= 5:
            raise MalformedLineError(f"got score {text!r}; expected 0 … 5")
        return score
    if text in labels:
        return labels.index(text)
    if text.isdecimal() and len(text) < 10 and int(text) < len(labels):
        return int(text)
    raise MalformedLineError(f"got label {text!r}; expected one of: {', '.join(labels)}, or 0 … {len(labels) - 1}")


def _example(task: GlueTask, row: dict[str, Any], number: int, subset: str = "") -> GlueExample:
    """An example from a row as the hub has it: flat, with `idx` a number or the numbers of its place."""
    if task.name == "record":
        row = {**row, "entities": ", ".join(sorted({*row["entities"]}))}
    elif task.name == "wsc":
        row = {**row, **_wsc(row)}
    texts, place = {name: _text(row, name) for name in task.texts}, row.get("idx", number)
    key = ".".join(map(str, place.values())) if isinstance(place, dict) else str(place)
    group = key.rpartition(".")[0] if task.name == "multirc" else ""
    if task.name == "record":
        answers = tuple(sorted({answer.strip() for answer in row.get("answers", ())}))
        return GlueExample(task, key, texts, answers=answers)
    return GlueExample(task, key, texts, _label(task, row), group, subset=subset)


def _multirc(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    passage = _get(row, "passage", dict)
    for question in _get(passage, "questions", list):
        for answer in _get(question, "answers", list):
            numbers = [_get(each, "idx", int) for each in (row, question, answer)]
            place = dict(zip(("paragraph", "question", "answer"), numbers, strict=True))
            texts = {"question": _text(question, "question"), "paragraph": _text(passage, "text")}
            yield {**answer, **texts, "answer": _text(answer, "text"), "idx": place}


def _record(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    passage = _get(row, "passage", dict)
    # Offsets refer to the text as it is in the file; `end` is the last character.
    text, spans = _get(passage, "text", str), _get(passage, "entities", list)
    entities = [text[_get(span, "start", int) : _get(span, "end", int) + 1] for span in spans]
    for query in _get(row, "qas", list):
        place = {"passage": _get(row, "idx", int), "query": _get(query, "idx", int)}
        flat = {"query": _text(query, "query"), "passage": text, "entities": entities, "idx": place}
        if "answers" in query:
            flat["answers"] = [_text(answer, "text") for answer in _get(query, "answers", list)]
        yield flat


def _wsc(row: dict[str, Any]) -> dict[str, str]:
    """The text with the pronoun between asterisks, and the noun."""
    # The hub has the spans in the row itself.
    target = _get(row, "target", dict) if "target" in row else row
    words, pronoun = _text(row, "text").split(), _text(target, "span2_text")
    index, pattern = _get(target, "span2_index", int), rf"\b{re.escape(pronoun)}\b"
    places = [place for place, word in enumerate(words) if re.search(pattern, word)]
    if not places:
        raise MalformedLineError(f"the text lacks the pronoun {pronoun!r}")
    # The index is off by one in some official examples.
    place = min(places, key=lambda place: abs(place - index))
    starred = re.sub(pattern, f"*{pronoun}*", words[place], count=1)
    # The noun as it is in the text: some official spans have another case or their own full stop.
    referent, start = " ".join(_text(target, "span1_text").split()).rstrip("."), _get(target, "span1_index", int)
    if referent and 0 <= start < len(words) and words[start][0].lower() == referent[0].lower():
        referent = words[start][0] + referent[1:]
    return {"text": " ".join([*words[:place], starred, *words[place + 1 :]]), "referent": referent}


# The rows of nested objects in official files.
NESTED: Mapping[str, Callable[[dict[str, Any]], Iterator[dict[str, Any]]]] = {"multirc": _multirc, "record": _record}
