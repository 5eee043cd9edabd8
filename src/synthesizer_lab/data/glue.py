"""GLUE and SuperGLUE: their tasks, their official files (TSV and JSON lines), and their data sets on the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import MalformedLineError, as_number, numbered_lines
from .source import Source

HUB_NAMES: Mapping[str, str] = {"glue": "nyu-mll/glue", "superglue": "aps/super_glue"}


@dataclass(frozen=True, eq=False)
class GlueTask:
    """A task of a suite: T5's name, the official folder, texts in the order of T5's prompts, and label words.

    Args:
        metrics: the official scores, by the names in results.
        columns: what the columns of a GLUE file with other names are.
    """

    suite: str
    name: str
    folder: str
    metrics: tuple[str, ...]
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=dict)

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


_PAIR, _SAME = ("sentence1", "sentence2"), ("not_duplicate", "duplicate")
_ENTAILMENT = ("entailment", "not_entailment")
_MNLI, _CB = ("entailment", "neutral", "contradiction"), ("entailment", "contradiction", "neutral")
_TRUTH, _CHOICES = ("False", "True"), ("choice1", "choice2")
_HYPOTHESIS, _ACCURACY, _F1 = ("hypothesis", "premise"), ("accuracy",), ("f1", "accuracy")
_BOTH = ("accuracy_matched", "accuracy_mismatched")
_PREMISES = {"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"}
_STRINGS = {"#1 String": "sentence1", "#2 String": "sentence2", "Quality": "label"}
# The columns of CoLA's files without header.
_COLA = ("source", "label", "mark", "sentence")
_TASKS = (
    GlueTask("glue", "cola", "CoLA", ("matthews",), ("sentence",), ("unacceptable", "acceptable")),
    GlueTask("glue", "sst2", "SST-2", _ACCURACY, ("sentence",), ("negative", "positive")),
    GlueTask("glue", "mrpc", "MRPC", _F1, _PAIR, ("not_equivalent", "equivalent"), _STRINGS),
    GlueTask("glue", "stsb", "STS-B", ("pearson", "spearman"), _PAIR, (), {"score": "label"}),
    GlueTask("glue", "qqp", "QQP", _F1, ("question1", "question2"), _SAME, {"is_duplicate": "label"}),
    GlueTask("glue", "mnli", "MNLI", _BOTH, _HYPOTHESIS, _MNLI, _PREMISES),
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
    # Of several names the last one counts.
    stems = {"train": ("train32", "train"), "valid": ("dev32", "val")}.get(split, (split,))
    names = {"": [f"{stem}.jsonl" for stem in stems]}
    if task.suite == "glue":
        stem = "dev" if split == "valid" else split
        names = {subset: [f"{stem}_{subset}.tsv" if subset else f"{stem}.tsv"] for subset in task.subsets(split)}
    own = [data] if data.resolve().name.lower() in task.names else []
    for folder in (data / task.suite / task.folder, data / task.folder, *own):
        found = {path.name: path for path in folder.glob("*.*")}
        if "train.jsonl" in found:
            # It contains the examples of dev32.jsonl.
            found.pop("dev32.jsonl", None)
        if paths := {subset: found[name] for subset in names for name in names[subset] if name in found}:
            return paths
    return {}


def read_examples(
    source: Source, task: GlueTask, subset: str = "", skip_bad_lines: bool = False
) -> Iterator[GlueExample | None]:
    """Read a split on the hub, or an official file: JSON lines of SuperGLUE, tab-separated values of GLUE.

    MultiRC gives an example per answer, ReCoRD one per query. WSC's `referent` is the noun that the label is about.
    """
    names, header, first = dict(task.columns), None, 1
    flatten = NESTED.get(task.name) if source.files else None
    if task.suite == "glue" and source.files:
        names |= {"index": "idx", "id": "idx"}
        first, line = next(numbered_lines(source.files[0]), (1, ""))
        given = [name.strip() for name in line.split("\t")]
        if task.name == "cola" and len(given) == len(_COLA) and "sentence" not in given:
            header = _COLA
        elif {*task.texts} <= {names.get(name, name) for name in given}:
            first += 1
        else:
            expected = [name for name in (*task.columns, *task.texts) if names.get(name, name) in task.texts]
            columns = f"got the columns {', '.join(given)}; expected a header with {', '.join(expected)}"
            raise UserError(f"{source}: {columns}")

    # A list: all examples of a line, or none if one is malformed.
    def parse(number: int, row: dict[str, Any]) -> list[GlueExample]:
        named = {names.get(name, name): value for name, value in row.items()}
        return [_example(task, each, number - first, subset) for each in (flatten(named) if flatten else [named])]

    # The official file of QQP has malformed lines.
    skip = None if source.hub else skip_bad_lines or task.name == "qqp"
    return source.parse(parse, skip, ["idx"] if source.hub else [], header)


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
    # The hub writes hidden labels as −1.
    if row.get("label", -1) == -1:
        return None
    # JSON's true is "True".
    text, labels = str(row["label"]), task.labels
    if not labels:
        score = as_number(text)
        if score is None or not 0 <= score <= 5:
            raise MalformedLineError(f"got score {text!r}; expected 0 … 5")
        return score
    for index, word in enumerate(labels):
        if text in (word, str(index)):
            return index
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
    answers = tuple(sorted({answer.strip() for answer in row.get("answers", ())}))
    return GlueExample(task, key, texts, _label(task, row), group, answers, subset)


def _multirc(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    passage = _get(row, "passage", dict)
    for question in _get(passage, "questions", list):
        texts = {"question": _text(question, "question"), "paragraph": _text(passage, "text")}
        for answer in _get(question, "answers", list):
            place = dict(enumerate(_get(each, "idx", int) for each in (row, question, answer)))
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
