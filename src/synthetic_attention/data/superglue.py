"""SuperGLUE's official files: JSON lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from .benchmark import BenchmarkTask, Example, find_file, label_index
from .lines import MalformedLineError, Parsed, collect, json_object, numbered_lines

__all__ = ["SUPERGLUE", "read_superglue", "superglue_file", "wsc_example"]

_TRUTH = ("False", "True")

SUPERGLUE: Mapping[str, BenchmarkTask] = {
    task.name: task
    for task in (
        BenchmarkTask("boolq", "BoolQ", ("passage", "question"), _TRUTH),
        BenchmarkTask("cb", "CB", ("hypothesis", "premise"), ("entailment", "contradiction", "neutral")),
        BenchmarkTask("copa", "COPA", ("choice1", "choice2", "premise", "question"), ("choice1", "choice2")),
        BenchmarkTask("multirc", "MultiRC", ("question", "answer", "paragraph"), _TRUTH),
        BenchmarkTask("record", "ReCoRD", ("query", "entities", "passage"), ()),
        BenchmarkTask("rte", "RTE", ("hypothesis", "premise"), ("entailment", "not_entailment")),
        BenchmarkTask("wic", "WiC", ("sentence1", "sentence2", "word"), _TRUTH),
        BenchmarkTask("wsc", "WSC", ("text", "referent"), _TRUTH),
    )
}


def superglue_file(data: Path, task: str, split: str) -> Path:
    """The official file of a split: "train", "valid", "test".

    Where it is missing, the few-shot subset of FewGLUE stands in: train32 for train, dev32 for valid.

    Args:
        data: the folder of all tasks, that of this task, or the file itself.

    Raises:
        NoFileError: there is no such file.
        UserError: there is no such task; or only dev32 is there, beside the whole of the training data, of which
            FewGLUE's is a part.
    """
    stems = {"train": ("train", "train32"), "valid": ("val", "dev32")}.get(split, (split,))
    folders = [each.folder for each in SUPERGLUE.values()]
    path = find_file(data, _task(task).folder, tuple(f"{stem}.jsonl" for stem in stems), folders)
    if not data.is_file() and path.name == "dev32.jsonl" and (path.parent / "train.jsonl").is_file():
        raise UserError(
            f"{path.parent}: no file val.jsonl; dev32.jsonl does not stand in for it beside train.jsonl, of which it "
            "is a part. Expected val.jsonl, or train32.jsonl in place of train.jsonl, or other tasks (--set tasks=…)"
        )
    return path


def read_superglue(path: Path, task: str, skip_bad_lines: bool = False) -> Parsed[Example]:
    """Read an official file.

    MultiRC gives an example for each answer, grouped by question, ReCoRD one for each query. WSC's `text` has the
    pronoun between asterisks, its `referent` is the noun that the label speaks of.

    Args:
        task: a key of `SUPERGLUE`.
        skip_bad_lines: leave malformed lines out and count them.

    Raises:
        UserError: the file cannot be read, or has a malformed line.
    """
    layout = _task(task)
    examples = _PARSERS.get(task, _plain)

    def parse(_: int, line: str) -> Iterator[Example]:
        # A line is taken whole or not at all.
        return iter([*examples(_Row(json_object(line)), layout)])

    return collect(path, numbered_lines(path), parse, skip_bad_lines)


def _task(name: str) -> BenchmarkTask:
    if name not in SUPERGLUE:
        raise UserError(f"got unknown task of SuperGLUE {name!r}; expected one of: {', '.join(SUPERGLUE)}")
    return SUPERGLUE[name]


class _Row:
    """A JSON object whose fields have to be there, and of the right type."""

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

    def rows(self, field: str) -> list[_Row]:
        where = f"{self.where}{field}"
        return [_Row(_as_object(value, where), f"{where}.") for value in self.get(field, list)]

    def label(self, layout: BenchmarkTask) -> int | None:
        """The class; None in test files, which lack it."""
        return label_index(self.values["label"], layout.labels) if "label" in self.values else None

    def id(self) -> str:
        return str(self.get("idx", int))


def _as_object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedLineError(f"field {where!r} has a {type(value).__name__}; expected objects")
    return value


def _plain(row: _Row, layout: BenchmarkTask) -> Iterator[Example]:
    yield Example(row.id(), {name: row.text(name) for name in layout.texts}, row.label(layout))


def _multirc(row: _Row, layout: BenchmarkTask) -> Iterator[Example]:
    passage = row.row("passage")
    paragraph = passage.text("text")
    for question in passage.rows("questions"):
        group = f"{row.id()}.{question.id()}"
        for answer in question.rows("answers"):
            texts = {"question": question.text("question"), "answer": answer.text("text"), "paragraph": paragraph}
            yield Example(f"{group}.{answer.id()}", texts, answer.label(layout), group)


def _record(row: _Row, _: BenchmarkTask) -> Iterator[Example]:
    passage = row.row("passage")
    # The offsets count from the text as it is in the file, and `end` is the last character.
    text = passage.get("text", str)
    entities = {text[span.get("start", int) : span.get("end", int) + 1] for span in passage.rows("entities")}
    for query in row.rows("qas"):
        answers = query.rows("answers") if "answers" in query.values else []
        yield Example(
            id=f"{row.id()}.{query.id()}",
            texts={"query": query.text("query"), "entities": ", ".join(sorted(entities)), "passage": text.strip()},
            answers=tuple(sorted({answer.text("text") for answer in answers})),
        )


def wsc_example(values: dict[str, Any], label: int | float | None) -> Example:
    """An example of WSC, of an object as the official files have it, with its class.

    Raises:
        MalformedLineError: a field is missing, or the pronoun is not in the text.
    """
    return _wsc_example(_Row(values), label)


def _wsc(row: _Row, layout: BenchmarkTask) -> Iterator[Example]:
    yield _wsc_example(row, row.label(layout))


def _wsc_example(row: _Row, label: int | float | None) -> Example:
    target = row.row("target")
    words = row.text("text").split()
    pronoun = target.text("span2_text")
    place = _nearest(words, pronoun, target.get("span2_index", int))
    starred = re.sub(rf"\b{re.escape(pronoun)}\b", f"*{pronoun}*", words[place], count=1)
    text = " ".join([*words[:place], starred, *words[place + 1 :]])
    referent = _referent(words, target.text("span1_text"), target.get("span1_index", int))
    return Example(row.id(), {"text": text, "referent": referent}, label)


def _nearest(words: list[str], pronoun: str, index: int) -> int:
    """Where the pronoun is: the index of some official examples is off by a word."""
    places = [place for place, word in enumerate(words) if re.search(rf"\b{re.escape(pronoun)}\b", word)]
    if not places:
        raise MalformedLineError(f"the text lacks the pronoun {pronoun!r}")
    return min(places, key=lambda place: abs(place - index))


def _referent(words: list[str], referent: str, index: int) -> str:
    """The noun as the text has it: official spans begin with another case, or end with a full stop of their own."""
    referent = " ".join(referent.split()).rstrip(".")
    if referent and 0 <= index < len(words) and words[index][0].lower() == referent[0].lower():
        referent = words[index][0] + referent[1:]
    return referent


_PARSERS: Mapping[str, Callable[[_Row, BenchmarkTask], Iterator[Example]]] = {
    "multirc": _multirc,
    "record": _record,
    "wsc": _wsc,
}
