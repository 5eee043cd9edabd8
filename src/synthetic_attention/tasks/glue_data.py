"""GLUE and SuperGLUE as text-to-text problems as in T5 (Raffel et al. 2020): splits, prompts, targets, the mixture."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..data.examples import Pairs
from ..data.glue import (
    GLUE,
    HUB_NAMES,
    SUPERGLUE,
    GlueExample,
    GlueTask,
    NoFileError,
    glue_file,
    read_glue,
    read_hub_task,
    read_superglue,
    superglue_file,
)
from ..data.lines import Parsed, fingerprint
from ..data.tokenizer import encode
from ..errors import UserError
from .seq2seq import TextPairs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

# The suite and the task in it, ("glue", "cola").
TaskName = tuple[str, str]
SUITES: Mapping[str, Mapping[str, GlueTask]] = {"glue": GLUE, "superglue": SUPERGLUE}
# T5's limit of the size of a data set in its multi-task mixtures.
DEFAULT_CAP = 2**19
_HIGHEST_SCORE = 5.0
# RTE is in both suites.
_TWICE = frozenset({"glue/rte", "superglue/rte"})
# Words that do not distinguish referents in WSC.
_DETERMINERS = frozenset(
    {"a", "an", "each", "every", "few", "her", "his", "many", "much", "my", "our", "some", "that", "the", "their"}
    | {"these", "this", "those", "which", "whose", "your"}
)


@dataclass(frozen=True)
class Item:
    """An example and its task.

    Args:
        subset: "matched" or "mismatched" for validation and test of MNLI, else "".
    """

    suite: str
    task: str
    subset: str
    example: GlueExample

    @property
    def layout(self) -> GlueTask:
        """The names and labels of the task."""
        return SUITES[self.suite][self.task]

    @property
    def owner(self) -> str:
        """The task with its suite, "superglue/rte"."""
        return f"{self.suite}/{self.task}"

    @property
    def is_labeled(self) -> bool:
        """Whether the correct output is known: test files hide it."""
        return self.example.label is not None or bool(self.example.answers)


@dataclass(frozen=True)
class GlueSplit(TextPairs):
    """A split of all tasks: sources are prompts, targets the expected outputs, blank if a label is hidden."""

    items: list[Item]

    @classmethod
    def of(cls, name: str, parts: Sequence[Parsed[Item]]) -> GlueSplit:
        """The items of all files."""
        items = [item for part in parts for item in part.records]
        sources = [prompt(item.layout, item.example) for item in items]
        targets = [target(item.layout, item.example) if item.is_labeled else "" for item in items]
        sides, skipped = (f"{name} prompts", f"{name} targets"), sum(part.skipped for part in parts)
        return cls(name, sources, targets, items, references=items, sides=sides, skipped=skipped)

    def fingerprint(self) -> dict[str, str | int]:
        """Digests that tell whether two runs read the same examples, and the number of examples of each task."""
        labels = [json.dumps([item.owner, item.example.label, item.example.answers]) for item in self.items]
        counts = Counter(f"{item.owner} {item.subset}".rstrip() for item in self.items)
        tasks = ", ".join(f"{name} {count}" for name, count in counts.items())
        return {**super().fingerprint(), "labels_sha256": fingerprint(labels), "tasks": tasks}


def chosen_tasks(suites: Sequence[str], names: Sequence[str]) -> list[TaskName]:
    """The tasks of these names, or all tasks if there are no names.

    A name is T5's ("sst2") or that of the official folder ("SST-2"), in any case; "superglue/rte" includes the suite.
    With both suites WNLI has to be named: it is made of the schemas of WSC, so training on it shows most of the
    validation set of WSC. (T5's mixtures do not contain WNLI either.)
    """
    known = [(suite, task) for suite in suites for task in SUITES[suite]]
    chosen: list[TaskName] = []
    for name in names:
        suite, _, task = name.lower().rpartition("/")
        found = [
            each
            for each in known
            if suite in ("", each[0]) and task in (each[1], SUITES[each[0]][each[1]].folder.lower())
        ]
        if not found:
            expected = ", ".join("/".join(each) if len(suites) > 1 else each[1] for each in known)
            raise UserError(f"got unknown task {name!r}; expected some of: {expected}")
        chosen += [each for each in found if each not in chosen]
    return chosen or [name for name in known if len(suites) == 1 or name != ("glue", "wnli")]


def present_tasks(data: Path, names: Sequence[TaskName], split: str) -> list[TaskName]:
    """The tasks that have files of the split, and of "train" as well if any task has; UserError if there are none."""
    trained = [name for name in names if _files(data, name, "train")]
    present = [name for name in names if _files(data, name, split) and (not trained or name in trained)]
    if missing := {suite for suite, _ in names} - {suite for suite, _ in present}:
        suite = min(missing)
        example = "CoLA/train.tsv, CoLA/dev.tsv" if suite == "glue" else "CB/train.jsonl, CB/val.jsonl"
        raise UserError(
            f"{data}: no task of {suite} has files of split {split!r}; expected folders of the official files in it "
            f"or in {data / suite}: {example}, …"
        )
    return present


def _files(data: Path, name: TaskName, split: str, alone: bool = False) -> dict[str, Path]:
    """The files of a split of a task by subset ("" without subsets).

    Args:
        data: the folder that has the folder of the task, or that of its suite.
        alone: `data` may also be the folder of the task itself.
    """
    suite, task = name
    find = glue_file if suite == "glue" else superglue_file
    for root in (data / suite, data):
        if not (alone or (root / SUITES[suite][task].folder).is_dir()):
            continue
        found = {}
        for subset in _subsets(task, split):
            with suppress(NoFileError):
                found[subset] = find(root, task, f"{split}_{subset}" if subset else split)
        if found:
            return found
    return {}


def read_files(data: Path, name: TaskName, split: str, alone: bool, skip_bad_lines: bool) -> list[Parsed[Item]]:
    """The examples of each file of a split of a task; the arguments are those of `_files`."""
    suite, task = name
    find, read = (glue_file, read_glue) if suite == "glue" else (superglue_file, read_superglue)
    files = _files(data, name, split, alone)
    if not files:
        # Raises an error that names the file.
        find(data / suite if (data / suite).is_dir() else data, task, split)
    # A split may name a subset, such as valid_matched.
    own = split.partition("_")[2] if task == "mnli" else ""
    return [_items(name, subset or own, read(path, task, skip_bad_lines)) for subset, path in files.items()]


def read_hub(hub: Mapping[str, str], name: TaskName, split: str, revision: str | None) -> list[Parsed[Item]]:
    """The examples of each part of a split of a task on the hub; `hub` has other names of suites than `HUB_NAMES`."""
    parts = {subset: f"{split}_{subset}" if subset else split for subset in _subsets(name[1], split)}
    source = {**HUB_NAMES, **hub}[name[0]]
    return [
        _items(name, subset, Parsed(read_hub_task(source, *name, part, revision))) for subset, part in parts.items()
    ]


def _items(name: TaskName, subset: str, parsed: Parsed[GlueExample]) -> Parsed[Item]:
    return Parsed([Item(*name, subset, example) for example in parsed.records], parsed.skipped)


def _subsets(task: str, split: str) -> tuple[str, ...]:
    return ("matched", "mismatched") if task == "mnli" and split in ("valid", "test") else ("",)


def prompt(task: GlueTask, example: GlueExample) -> str:
    """The input text: the name of the task, then each text after its name.

    >>> prompt(GLUE["qnli"], GlueExample("0", {"question": "Who?", "sentence": "Ann did."}))
    'qnli question: Who? sentence: Ann did.'

    For WSC it is the text with the pronoun between asterisks, as in T5, without the candidate.
    """
    if task.name == "wsc":
        return _one_line(f"wsc: {example.texts['text']}")
    named = (f"{name}: {_clean(task.name, example.texts[name])}" for name in task.texts)
    return _one_line(" ".join([task.name, *named]))


def target(task: GlueTask, example: GlueExample) -> str:
    """The output text: the label word, the score to the nearest 0.2, the first answer, or the referent."""
    if task.name == "wsc":
        return example.texts["referent"]
    if task.name == "record" and example.answers:
        return _one_line(example.answers[0])
    if example.label is None:
        raise ValueError(f"got example {example.id} of {task.name} without label; expected one with its label")
    if not task.labels:
        return f"{round(example.label * 5) / 5:.1f}"
    return task.labels[int(example.label)]


def training_pairs(item: Item) -> list[tuple[str, str]]:
    """The (prompt, target) pairs to train on.

    A query of ReCoRD gives one for each correct answer. WSC gives only examples with the correct referent: the model
    writes the referent, so others teach nothing.
    """
    source = prompt(item.layout, item.example)
    if not item.is_labeled:
        return [(source, "")]
    if item.task == "record":
        return [(source, _one_line(answer)) for answer in item.example.answers]
    if item.task == "wsc" and item.example.label != 1:
        return []
    return [(source, target(item.layout, item.example))]


def read_label(task: GlueTask, example: GlueExample, text: str) -> int | float | str | None:
    """The prediction that the output `text` means; None if it is not a label, which counts as wrong.

    For tasks with classes the text has to be exactly a label word. For STS-B it is a score from 0 to 5. For WSC the
    class is whether the text names the referent of the example; an empty text is no label. For ReCoRD the prediction
    is the text.
    """
    text = _one_line(text)
    if task.name == "record":
        return text
    if task.name == "wsc":
        return int(_same_referent(text, example.texts["referent"])) if _words(text) else None
    if task.labels:
        return task.labels.index(text) if text in task.labels else None
    if not re.fullmatch(r"\d+(\.\d*)?", text, re.ASCII) or float(text) > _HIGHEST_SCORE:
        return None
    return float(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _clean(name: str, text: str) -> str:
    """Without the markup of MultiRC, and with the highlights of ReCoRD as sentences."""
    if name == "multirc":
        return re.sub(r"</?b>", "", text.replace("<br>", " "))
    if name == "record":
        text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", text)
        return text.replace("\n@highlight\n", ". ")
    return text


def _words(text: str) -> set[str]:
    """The words in lower case, without determiners."""
    return {*text.lower().split()} - _DETERMINERS


def _same_referent(text: str, referent: str) -> bool:
    """Whether the words of one are a subset of the words of the other.

    A possessive is another referent: "Bob" is not "Bob's hat".
    """
    words, wanted = _words(text), _words(referent)
    if any("'" in word for word in words) != any("'" in word for word in wanted):
        return False
    return bool(words and wanted) and (words <= wanted or wanted <= words)


def longest_target(split: GlueSplit, tokenizer: Tokenizer) -> int:
    """The tokens of the longest possible output for an example of the split, `</s>` included."""
    texts = {*split.targets, "5.0"}
    for item in split.items:
        texts.update(item.layout.labels, item.example.answers)
        if item.task == "record":
            texts.update(item.example.texts["entities"].split(", "))
        if item.task == "wsc":
            texts.add(item.example.texts["referent"])
    return max(len(ids) for ids in encode(tokenizer, sorted(texts)))


def shorten_prompts(split: GlueSplit, tokenizer: Tokenizer, max_length: int) -> tuple[list[str], int]:
    """The prompts, and how many were too long: these lose the end of their longest text, not their own end."""
    rows = [row for row, ids in enumerate(encode(tokenizer, split.sources)) if len(ids) > max_length]
    shortened = list(split.sources)
    for row in rows:
        shortened[row] = _fit(split.items[row], tokenizer, max_length)
    return shortened, len(rows)


def _fit(item: Item, tokenizer: Tokenizer, max_length: int) -> str:
    texts: Mapping[str, str] = item.example.texts
    longest = max(item.layout.texts, key=lambda name: len(texts[name]))
    text = texts[longest]
    while True:
        source = prompt(item.layout, replace(item.example, texts={**texts, longest: text}))
        over = len(encode(tokenizer, [source])[0]) - max_length
        if over <= 0 or not text:
            return source
        # The start of the first token over the limit. (The byte tokens of one character share their offsets.)
        starts = [start for start, _ in tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).offsets]
        text = text[: starts[-over]].rstrip() if over < len(starts) else ""


def sample_rows(split: GlueSplit, most: int) -> list[int]:
    """Rows with about `most` examples of each task and subset, the same in every run; 0 for all."""
    by_task: dict[tuple[str, str], dict[str, list[int]]] = {}
    for row, item in enumerate(split.items):
        # The answers to a question of MultiRC stay together.
        by_task.setdefault((item.owner, item.subset), {}).setdefault(item.example.group or str(row), []).append(row)
    rows: list[int] = []
    for groups in by_task.values():
        order, taken = list(groups.values()), 0
        for place in np.random.default_rng(0).permutation(len(order)) if most else range(len(order)):
            if most and taken and taken + len(order[place]) > most:
                break
            rows += order[place]
            taken += len(order[place])
    return sorted(rows)


@dataclass(frozen=True)
class TaskMixture(Pairs):
    """Pairs of several tasks. An epoch has each task in proportion to its size, up to a cap.

    A task with e examples has min(e, cap) of them in an epoch: T5's examples-proportional mixing; T5 draws tasks at
    these rates, here every epoch has them exactly. A capped task continues in the next epoch where it stopped, until
    all its examples were used. RTE is in both suites: with both, each counts half, as in T5.

    Args:
        members: the indices of the pairs of each task, by its name with the suite.
        cap: the most examples of one task in an epoch.
    """

    members: Mapping[str, np.ndarray]
    cap: int

    def counts(self) -> dict[str, int]:
        """The examples of each task in an epoch."""
        counts = {task: min(len(indices), self.cap) for task, indices in self.members.items()}
        if counts.keys() >= _TWICE:
            counts |= {task: (counts[task] + 1) // 2 for task in _TWICE}
        return counts

    def draw(self, rng: np.random.Generator, seed: int = 0, number: int = 0) -> np.ndarray:
        """The indices of epoch `number`, in an order that depends on the seed and this number alone."""
        drawn = [
            self.members[task][row]
            for index, (task, count) in enumerate(self.counts().items())
            for row in _epoch_rows(len(self.members[task]), count, number, [seed, index])
        ]
        return np.array(drawn)[np.random.default_rng([seed, number]).permutation(len(drawn))]

    def examples_per_pass(self) -> int:
        """The number of examples in an epoch."""
        return sum(self.counts().values())

    def tokens_per_pass(self) -> float:
        """The mean number of tokens in an epoch."""
        tokens, counts = self.lengths().sum(axis=1), self.counts()
        return float(sum(counts[task] * tokens[indices].mean() for task, indices in self.members.items()))


def _epoch_rows(size: int, count: int, number: int, seed: Sequence[int]) -> np.ndarray:
    """`count` rows from position `count` × `number` of an endless sequence of permutations of `size` rows."""
    start = count * number
    rounds = range(start // size, (start + count - 1) // size + 1)
    rows = [np.random.default_rng([*seed, turn, 1]).permutation(size) for turn in rounds]
    offset = start - rounds.start * size
    return np.concatenate(rows)[offset : offset + count]
