"""Splits of GLUE and SuperGLUE: which files there are, and their examples as prompts and targets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..data.benchmark import BenchmarkTask, Example, NoFileError
from ..data.benchmark_hub import HUB_NAMES, read_hub_task
from ..data.glue import glue_file, read_glue
from ..data.lines import Parsed
from ..data.superglue import read_superglue, superglue_file
from ..data.text import fingerprint
from ..data.tokenizer import encode
from ..errors import UserError
from .seq2seq import TextPairs
from .text_to_text import BENCHMARKS, prompt, target

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = [
    "BenchmarkSplit",
    "Item",
    "TaskName",
    "chosen_tasks",
    "is_labeled",
    "present_tasks",
    "read_hub_items",
    "read_items",
    "shorten",
]

# The suite and the task in it, ("glue", "cola").
TaskName = tuple[str, str]
# MNLI is scored on two sets.
_SUBSETS = ("matched", "mismatched")


@dataclass(frozen=True)
class Item:
    """An example, and where it belongs.

    Args:
        subset: of MNLI's validation and test, "matched" or "mismatched".
    """

    suite: str
    task: str
    subset: str
    example: Example

    @property
    def layout(self) -> BenchmarkTask:
        """How its task is laid out."""
        return BENCHMARKS[self.suite][self.task]

    @property
    def owner(self) -> str:
        """Its task with the suite, "superglue/rte"."""
        return f"{self.suite}/{self.task}"


@dataclass(frozen=True)
class BenchmarkSplit(TextPairs):
    """A split of all tasks: `sources` are prompts, `targets` what should be written, blank where a label is hidden."""

    items: list[Item]

    @classmethod
    def of(cls, name: str, items: Sequence[Item], skipped: int) -> BenchmarkSplit:
        """The split as text."""
        sources = [prompt(item.layout, item.example) for item in items]
        targets = [target(item.layout, item.example) if is_labeled(item.example) else "" for item in items]
        return cls(name, sources, targets, list(items), skipped=skipped)

    def counts(self) -> dict[str, int]:
        """Examples of each task, and of each subset of one."""
        counts: dict[str, int] = {}
        for item in self.items:
            name = f"{item.owner} {item.subset}".rstrip()
            counts[name] = counts.get(name, 0) + 1
        return counts

    def fingerprint(self) -> dict[str, str | int]:
        """What tells whether two runs read the same examples; how many of each task."""
        labels = [json.dumps([item.owner, item.example.label, item.example.answers]) for item in self.items]
        counts = ", ".join(f"{name} {count}" for name, count in self.counts().items())
        return {**super().fingerprint(), "labels_sha256": fingerprint(labels), "tasks": counts}


def is_labeled(example: Example) -> bool:
    """Whether it is known what is right: in test files it is not."""
    return example.label is not None or bool(example.answers)


def chosen_tasks(suites: Sequence[str], names: Sequence[str]) -> list[TaskName]:
    """The tasks of these names, or all where there is no name.

    A name is T5's ("sst2") or that of the official folder ("SST-2"), whatever its case; "superglue/rte" has the suite
    with it, and without one "rte" is the task of either suite.

    Of both suites together WNLI is only taken by name: it is made of the schemas of WSC, so training on it shows most
    of what WSC is validated on. (T5's mixtures have no WNLI either.)

    Raises:
        UserError: a name is of no task.
    """
    every = [(suite, task) for suite in suites for task in BENCHMARKS[suite]]
    chosen: list[TaskName] = []
    for name in names:
        suite, _, task = name.lower().rpartition("/")
        found = [
            each
            for each in every
            if suite in ("", each[0]) and task in (each[1], BENCHMARKS[each[0]][each[1]].folder.lower())
        ]
        if not found:
            known = ", ".join(f"{suite}/{task}" if len(suites) > 1 else task for suite, task in every)
            raise UserError(f"got unknown task {name!r}; expected some of: {known}")
        chosen += [each for each in found if each not in chosen]
    return chosen or [name for name in every if len(suites) == 1 or name != ("glue", "wnli")]


def present_tasks(data: Path, names: Sequence[TaskName], split: str) -> list[TaskName]:
    """Those of `names` that have a file of the split; of others than "train" only if they have one to train on too.

    (Where `data` has nothing at all to train on, what can be trained on is no matter.)

    Raises:
        UserError: a suite has none.
    """
    there = [name for name in names if task_files(data, name, split)]
    trained = [name for name in names if task_files(data, name, "train")]
    present = [name for name in there if not trained or name in trained]
    for suite in dict.fromkeys(suite for suite, _ in names):
        if not any(each == suite for each, _ in present):
            example = "CoLA/train.tsv, CoLA/dev.tsv" if suite == "glue" else "CB/train.jsonl, CB/val.jsonl"
            raise UserError(
                f"{data}: no task of {suite} has files of split {split!r}; expected folders of the official files, in "
                f"it or in {data / suite}: {example}, …"
            )
    return present


def task_files(data: Path, name: TaskName, split: str, alone: bool = False) -> dict[str, Path]:
    """The files of a split of a task, by subset ("" for tasks that have none); none if there are none.

    Args:
        data: has the folder of the task, or one of its suite that has it.
        alone: `data` may also be the folder of the task itself.
    """
    suite, task = name
    find = glue_file if suite == "glue" else superglue_file
    subsets = _subsets(task, split)
    for root in (data / suite, data):
        if not (alone or (root / BENCHMARKS[suite][task].folder).is_dir()):
            continue
        found = {}
        for subset in subsets:
            try:
                found[subset] = find(root, task, f"{split}_{subset}" if subset else split)
            except NoFileError:
                continue
        if found:
            return found
    return {}


def read_items(data: Path, name: TaskName, split: str, alone: bool, skip_bad_lines: bool) -> Iterator[Parsed[Item]]:
    """The examples of each file of a split of a task.

    Raises:
        UserError: there is no file, or one cannot be read.
    """
    suite, task = name
    find, read = (glue_file, read_glue) if suite == "glue" else (superglue_file, read_superglue)
    files = task_files(data, name, split, alone)
    if not files:
        # It is refused with what was looked for.
        find(data / suite if (data / suite).is_dir() else data, task, split)
    for subset, path in files.items():
        parsed = read(path, task, skip_bad_lines)
        # A file of one subset that is asked for by name.
        subset = subset or (split.partition("_")[2] if task == "mnli" else "")
        yield Parsed([Item(suite, task, subset, example) for example in parsed.records], parsed.skipped)


def read_hub_items(hub: Mapping[str, str], name: TaskName, split: str, revision: str | None) -> Iterator[Parsed[Item]]:
    """The examples of each part of a split of a task, from the hub.

    Args:
        hub: OWNER/NAME of suites that are not where they are known to be.

    Raises:
        UserError: they cannot be fetched.
    """
    suite, task = name
    for subset in _subsets(task, split):
        called = f"{split}_{subset}" if subset else split
        found = read_hub_task({**HUB_NAMES, **hub}[suite], suite, task, called, revision)
        yield Parsed([Item(suite, task, subset, example) for example in found])


def _subsets(task: str, split: str) -> tuple[str, ...]:
    return _SUBSETS if task == "mnli" and split in ("valid", "test") else ("",)


def shorten(
    items: Sequence[Item], sources: Sequence[str], tokenizer: PreTrainedTokenizerFast, maximum: int
) -> tuple[list[str], int]:
    """The prompts, of which those over `maximum` tokens have the end of their longest text cut off; how many those are.

    A prompt is not cut at its own end: that of BoolQ has the question there.
    """
    # A text has at most as many tokens as bytes, and </s>: most need no encoding to be known to fit.
    doubtful = [row for row, source in enumerate(sources) if len(source.encode()) >= maximum]
    lengths = map(len, encode(tokenizer, [sources[row] for row in doubtful]))
    rows = [row for row, length in zip(doubtful, lengths, strict=True) if length > maximum]
    shortened = list(sources)
    for row in rows:
        shortened[row] = _fit(items[row], tokenizer, maximum)
    return shortened, len(rows)


def _fit(item: Item, tokenizer: PreTrainedTokenizerFast, maximum: int) -> str:
    layout, example = item.layout, item.example
    texts: Mapping[str, str] = example.texts
    longest = max(layout.texts, key=lambda name: len(texts[name]))
    text = texts[longest]
    while True:
        source = prompt(layout, replace(example, texts={**texts, longest: text}))
        over = len(encode(tokenizer, [source])[0]) - maximum
        if over <= 0 or not text:
            return source
        # Where the first token begins that is too much. (Tokens that are bytes of one character end at the same place.)
        starts = [start for start, _ in tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).offsets]
        text = text[: starts[-over]].rstrip() if over < len(starts) else ""
