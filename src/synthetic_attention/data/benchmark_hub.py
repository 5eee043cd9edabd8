"""GLUE and SuperGLUE as the Hugging Face hub has them: a subset for each task, −1 for labels that are hidden."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .benchmark import BenchmarkTask, Example
from .glue import GLUE
from .hub import HubSet
from .superglue import SUPERGLUE, wsc_example

__all__ = ["HUB_NAMES", "read_hub_task"]

# Where the suites are.
HUB_NAMES: Mapping[str, str] = {"glue": "nyu-mll/glue", "superglue": "aps/super_glue"}
_HIDDEN = -1
_WSC = ("text", "span1_text", "span1_index", "span2_text", "span2_index", "idx", "label")


def read_hub_task(name: str, suite: str, task: str, split: str, revision: str | None = None) -> list[Example]:
    """The examples of a split of a task.

    Args:
        name: OWNER/NAME of the suite.
        suite: "glue" or "superglue".
        split: "train", "valid", "test"; of MNLI "valid_matched", "valid_mismatched" and so on.

    Raises:
        UserError: `datasets` is not installed, or the data cannot be fetched or is not laid out as expected.
    """
    layout = (GLUE if suite == "glue" else SUPERGLUE)[task]
    own = _OWN.get(task) if suite == "superglue" else None
    columns, make = own or ((*layout.texts, "idx", "label"), _plain)
    called = f"validation{split.removeprefix('valid')}" if split.startswith("valid") else split
    rows = HubSet(name, task, revision).rows(called, columns)
    return [make(dict(zip(columns, row, strict=True)), layout) for row in rows]


def _plain(row: Mapping[str, Any], layout: BenchmarkTask) -> Example:
    return Example(str(row["idx"]), {name: row[name].strip() for name in layout.texts}, _label(row))


def _label(row: Mapping[str, Any]) -> int | float | None:
    return None if row["label"] == _HIDDEN else row["label"]


def _multirc(row: Mapping[str, Any], layout: BenchmarkTask) -> Example:
    place = row["idx"]
    group = f"{place['paragraph']}.{place['question']}"
    texts = {name: row[name].strip() for name in layout.texts}
    return Example(f"{group}.{place['answer']}", texts, _label(row), group)


def _record(row: Mapping[str, Any], _: BenchmarkTask) -> Example:
    place = row["idx"]
    texts = {
        "query": row["query"].strip(),
        "entities": ", ".join(sorted({*row["entities"]})),
        "passage": row["passage"].strip(),
    }
    answers = tuple(sorted({answer.strip() for answer in row["answers"]}))
    return Example(f"{place['passage']}.{place['query']}", texts, answers=answers)


def _wsc(row: Mapping[str, Any], _: BenchmarkTask) -> Example:
    spans = {name: row[name] for name in _WSC if name.startswith("span")}
    return wsc_example({"text": row["text"], "target": spans, "idx": row["idx"]}, _label(row))


_Make = Callable[[Mapping[str, Any], BenchmarkTask], Example]
_OWN: Mapping[str, tuple[tuple[str, ...], _Make]] = {
    "multirc": (("question", "answer", "paragraph", "idx", "label"), _multirc),
    "record": (("query", "entities", "passage", "answers", "idx"), _record),
    "wsc": (_WSC, _wsc),
}
