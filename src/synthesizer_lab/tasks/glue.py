"""GLUE and SuperGLUE from text to text, with T5's prompts, label words and mixture: one model for all their tasks."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from transformers import GenerationConfig

from ..data.examples import IGNORED, Examples, OnLong
from ..data.files import check_folder, named_split
from ..data.glue import HUB_NAMES, SUITES, GlueExample, GlueTask, read_examples, task_files
from ..data.source import Records, Source, is_hub_name
from ..data.tokenizer import Tokenizer, encode
from ..errors import UserError, require
from ..metrics.glue import suite_average, task_scores
from .base import EvaluationLoop, Scores
from .generation import make_generation_config
from .seq2seq import SequenceToSequence, TextPairs, json_lines

# RTE is in both suites.
_TWICE = frozenset({"glue/rte", "superglue/rte"})
_METRICS = {"matthews": "MCC", "f1": "F1", "f1a": "F1a", "exact_match": "EM", "pearson": "Pearson"}
_METRICS |= {"spearman": "Spearman", "accuracy_matched": "matched acc.", "accuracy_mismatched": "mismatched acc."}
# Words that do not distinguish referents in WSC.
_DETERMINERS = frozenset(
    {"a", "an", "each", "every", "few", "her", "his", "many", "much", "my", "our", "some", "that", "the", "their"}
    | {"these", "this", "those", "which", "whose", "your"}
)


def prompt(example: GlueExample) -> str:
    """The name of the task, then each text after its name: "qnli question: Who? sentence: Ann did."

    For WSC the text with the pronoun between asterisks, as in T5, without the candidate.
    """
    task = example.task.name
    if task == "wsc":
        return _one_line(f"wsc: {example.texts['text']}")
    return _one_line(" ".join([task, *(f"{name}: {_clean(task, example.texts[name])}" for name in example.task.texts)]))


def target(example: GlueExample) -> str:
    """The label word, the score to the nearest 0.2, the first answer, or the referent; "" if the label is hidden."""
    if not example.is_labeled:
        return ""
    if example.answers:
        return _one_line(example.answers[0])
    if example.task.name == "wsc":
        return example.texts["referent"]
    label = example.label or 0
    return example.task.labels[int(label)] if example.task.labels else f"{round(label * 5) / 5:.1f}"


def training_pairs(example: GlueExample) -> list[tuple[str, str]]:
    """The (prompt, target) pairs to train on: of a query of ReCoRD one for each correct answer.

    WSC gives only examples with the correct referent: the model writes the referent, so others teach nothing.
    """
    if example.task.name == "wsc" and example.label == 0:
        return []
    return [(prompt(example), text) for text in map(_one_line, example.answers or [target(example)])]


def read_label(example: GlueExample, text: str) -> int | float | str | None:
    """The prediction that the output `text` means; None if it is not a label, which counts as wrong.

    A class has to be exactly a label word, the score of STS-B a number from 0 to 5. For WSC the class is whether the
    words of the text are among those of the referent, or the reverse; an empty text is no label. For ReCoRD the
    prediction is the text.
    """
    text, labels = _one_line(text), example.task.labels
    if example.task.name == "record":
        return text
    if example.task.name == "wsc":
        referent = example.texts["referent"]
        words, wanted = _words(text), _words(referent)
        # A possessive is another referent: "Bob", "Bob's hat".
        is_same = ("'" in text) == ("'" in referent) and bool(wanted) and (words <= wanted or wanted <= words)
        return int(is_same) if words else None
    if labels:
        return labels.index(text) if text in labels else None
    return float(text) if re.fullmatch(r"\d+(\.\d*)?", text, re.ASCII) and float(text) <= 5 else None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _clean(task: str, text: str) -> str:
    """Without the markup of MultiRC, and with the highlights of ReCoRD as sentences."""
    if task == "multirc":
        return re.sub(r"</?b>", "", text.replace("<br>", " "))
    if task == "record":
        text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", text)
        return text.replace("\n@highlight\n", ". ")
    return text


def _words(text: str) -> set[str]:
    """The words in lower case, without determiners."""
    return {*text.lower().split()} - _DETERMINERS


@dataclass(frozen=True, eq=False)
class GlueSplit(TextPairs):
    """A split of all tasks: sources are prompts, targets the expected outputs, references the examples."""

    @classmethod
    def of(cls, name: str, rows: Sequence[Any], **options: Any) -> GlueSplit:
        """The examples of all files."""
        sources, targets = [*map(prompt, rows)], [*map(target, rows)]
        return cls(name, sources, targets, references=rows, sides=(" prompts", " targets"), **options)

    def columns(self) -> dict[str, Iterable[str]]:
        """The lines whose digests identify the text and the labels."""
        labels = (json.dumps([each.task.key, each.label, each.answers]) for each in self.references)
        return {**super().columns(), "labels_sha256": labels}

    def fingerprint(self) -> dict[str, str | int]:
        """Digests that tell whether two runs read the same examples, and the number of examples of each task."""
        counts = Counter(f"{each.task.key} {each.subset}".rstrip() for each in self.references)
        tasks = ", ".join(f"{name} {count}" for name, count in counts.items())
        return {**super().fingerprint(), "tasks": tasks}


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskMixture(Examples):
    """Pairs of several tasks, mixed in proportion to their sizes, up to a cap, as in T5.

    A task with e examples has min(e, cap) of them in an epoch. (T5 draws tasks at these rates.) A capped task continues
    in the next epoch where it stopped, until all its examples were used. Of both suites each RTE counts half.

    Args:
        members: the indices of the pairs of each task.
        counts: how many pairs of each task are in an epoch.
    """

    members: Mapping[str, np.ndarray]
    counts: Mapping[str, int]

    def draw(self, rng: np.random.Generator, seed: int = 0, number: int = 0) -> np.ndarray:
        """The indices of epoch `number`, in an order that depends on the seed and this number alone."""
        drawn = np.concatenate(
            [
                indices[_epoch_rows(len(indices), self.counts[task], number, [seed, index])]
                for index, (task, indices) in enumerate(self.members.items())
            ]
        )
        return drawn[np.random.default_rng([seed, number]).permutation(len(drawn))]

    def tokens_per_pass(self) -> float:
        """The mean number of tokens in an epoch."""
        tokens = self.lengths().sum(axis=1)
        return float(sum(self.counts[task] * tokens[indices].mean() for task, indices in self.members.items()))


def _epoch_rows(size: int, count: int, number: int, seed: Sequence[int]) -> np.ndarray:
    """`count` rows from position `count` × `number` of an endless sequence of permutations of `size` rows."""
    start = count * number
    rounds = range(start // size, (start + count - 1) // size + 1)
    rows = [np.random.default_rng([*seed, turn, 1]).permutation(size) for turn in rounds]
    offset = start - rounds.start * size
    return np.concatenate(rows)[offset : offset + count]


@dataclass(frozen=True)
class Glue(SequenceToSequence):
    """GLUE: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE and WNLI, as in T5: a prompt in, a label word out.

    Args:
        tasks: one task ("sst2") or several; by default all that have files. With both suites a name may include its
            suite, "superglue/rte".
        together: one model for the tasks of GLUE and of SuperGLUE.
        cap: the most examples of one task in an epoch of training; by default T5's.
        valid_examples: the most examples of each task (and subset of MNLI) in a validation; questions of MultiRC stay
            whole; 0 for all. An evaluation scores all.
        skip_bad_lines: skip and count malformed lines.
        revision: of the suite on the hub that --data names. With `together` the newest one of the other suite is read.
    """

    tasks: str | list[str] | None = None
    together: bool = False
    cap: int = 2**19
    valid_examples: int = 0
    skip_bad_lines: bool = False
    revision: str | None = None
    name: ClassVar[str] = "glue"
    score_labels: ClassVar[Mapping[str, str]] = {
        "average": "average",
        "glue_average": "GLUE",
        "superglue_average": "SuperGLUE",
        **{
            f"{suite}_{task.name}_{metric}": f"{task.folder} {_METRICS.get(metric, metric)}"
            for suite, tasks in SUITES.items()
            for task in tasks.values()
            for metric in task.metrics
        },
        "superglue_rte_accuracy": "SuperGLUE RTE accuracy",
        "invalid": "no label",
    }
    metric_for_best_model: ClassVar[str] = "average"
    unit: ClassVar[str] = "examples"

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise UserError(f"got cap={self.cap}; expected at least 1")
        self._chosen()

    def _chosen(self) -> list[GlueTask]:
        """The tasks of the options, whether they have files or not.

        With both suites WNLI has to be named: it is made of the schemas of WSC, so training on it shows most of the
        validation set of WSC. (T5's mixtures do not contain WNLI either.)
        """
        suites = tuple(SUITES) if self.together else (self.name,)
        known = [task for suite in suites for task in SUITES[suite].values()]
        if not self.tasks:
            return [task for task in known if not self.together or task.name != "wnli"]
        chosen: list[GlueTask] = []
        for name in [self.tasks] if isinstance(self.tasks, str) else self.tasks:
            if not (found := [task for task in known if name.lower() in task.names]):
                expected = ", ".join(task.key if self.together else task.name for task in known)
                raise UserError(f"got unknown task {name!r}; expected some of: {expected}")
            chosen += found
        return list(dict.fromkeys(chosen))

    def check_requirements(self) -> None:
        """Check that the packages of the metrics are installed."""
        require("sklearn.metrics", "glue", f"scoring of {self.name}")
        require("scipy.stats", "glue", f"scoring of {self.name}")

    def records(self, data: Path, split: str) -> Records:
        """The examples of the tasks, from official files or from the hub; not in parts, because of the mixture.

        `data` is the folder of the tasks, of the suites, or of a task; or this suite on the hub, where the other one
        has its usual name.
        """
        split = named_split(split)
        # No files: nothing of its size leads to parts.
        return Records(Source(str(data)), partial(self._examples, data, split), partial(GlueSplit.of, split))

    def _examples(self, data: Path, split: str) -> Iterator[GlueExample | None]:
        tasks = self._chosen()
        if is_hub_name(data):
            own = Source.of(data, split, revision=self.revision)
            for task in tasks:
                source = own if task.suite == self.name else Source("", hub=HUB_NAMES[task.suite])
                for subset in task.subsets(split):
                    part = "_".join(filter(None, ("validation" if split == "valid" else split, subset)))
                    yield from read_examples(replace(source, subset=task.name, split=part), task, subset)
            return
        check_folder(data)
        if not self.tasks:
            # What is not trained on is not scored, unless there is nothing to train on.
            trained = [task for task in tasks if task_files(data, task, "train")] or tasks
            tasks = [task for task in trained if task_files(data, task, split)] or tasks
        files = {task: task_files(data, task, split) for task in tasks}
        missing = [task.folder for task in tasks if not files[task]]
        suites = {task.suite for task in self._chosen()} - {task.suite for task in tasks}
        if missing := [*missing, *(f"any task of {suite}" for suite in sorted(suites))]:
            raise UserError(
                f"{data}: no official files of {', '.join(missing)} for split {split!r}; expected CoLA/train.tsv, "
                "CoLA/dev.tsv, CB/train.jsonl, CB/val.jsonl, … in this folder or in its folders glue and superglue, or "
                "the folder of one task with its name"
            )
        for task, paths in files.items():
            for subset, path in paths.items():
                yield from read_examples(Source(split, (path,)), task, subset, self.skip_bad_lines)

    def encode(
        self, split: TextPairs, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> Examples:
        """In training the mixture of the tasks, else some examples of each; those without label are dropped."""
        examples: Sequence[GlueExample] = split.references
        if training:
            chosen = [(row, *pair) for row, example in enumerate(examples) for pair in training_pairs(example)]
        else:
            chosen = [(row, split.sources[row], split.targets[row]) for row in _sample(examples, self.valid_examples)]
        rows, sources, targets = map(list, zip(*chosen, strict=True)) if chosen else ([], [], [])
        texts = replace(split, sources=sources, targets=targets, references=split.references_of(rows))
        pairs = super().encode(texts, tokenizer, max_length, on_long, training)
        pairs = replace(pairs, rows=[rows[row] for row in pairs.rows])
        kept = [examples[row] for row in pairs.rows]
        if training:
            keys = np.array([example.task.key for example in kept])
            members = {key: np.flatnonzero(keys == key) for key in dict.fromkeys(keys.tolist())}
            counts = {key: min(len(indices), self.cap) for key, indices in members.items()}
            if counts.keys() >= _TWICE:
                counts |= {key: (counts[key] + 1) // 2 for key in _TWICE}
            return TaskMixture(**vars(pairs), members=members, counts=counts)
        # The validation loss leaves out the examples of WSC with a wrong referent, unless all are wrong.
        wrong = [example.task.name == "wsc" and example.label == 0 for example in kept]
        if not all(wrong):
            for row in np.flatnonzero(wrong).tolist():
                pairs[row][1][:] = IGNORED
        return pairs

    def shorten(self, source: str, reference: GlueExample | None, tokenizer: Tokenizer, max_length: int) -> str:
        """Cut the end of the longest text of a prompt instead of the prompt's."""
        if reference is None:
            return source
        longest = max(reference.task.texts, key=lambda name: len(reference.texts[name]))
        text = reference.texts[longest]
        while (over := len(encode(tokenizer, [source])[0]) - max_length) > 0 and text:
            # The start of the first token over the limit. (The byte tokens of one character share their offsets.)
            starts = [start for start, _ in tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).offsets]
            text = text[: starts[-over]].rstrip() if over < len(starts) else ""
            source = prompt(replace(reference, texts={**reference.texts, longest: text}))
        return source

    def limit_output(self, generation: GenerationConfig, split: TextPairs, tokenizer: Tokenizer) -> GenerationConfig:
        """At most the tokens of the longest target."""
        if generation.max_new_tokens is None:
            texts = {"5.0", *split.targets}
            for example in split.references:
                entities, referent = example.texts.get("entities", ""), example.texts.get("referent", "")
                texts |= {referent, *entities.split(", "), *example.task.labels, *example.answers}
            longest = max(len(ids) for ids in encode(tokenizer, sorted(texts)))
            generation = copy.deepcopy(generation)
            generation.max_new_tokens = max(longest, (generation.min_new_tokens or 0) + 1)
        return generation

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """Greedy search, updated by `options`."""
        return make_generation_config(options, num_beams=1, length_penalty=1.0)

    def score(
        self, outputs: Sequence[str], references: Sequence[GlueExample], loop: EvaluationLoop | None = None
    ) -> Scores:
        """The official scores of the tasks in percent, and averages of the suites over the tasks that have outputs.

        "average" is the mean of the averages of the suites, or the mean of all scores if no task counts in a suite's
        average, like WNLI. "invalid" counts the outputs that are not labels, "glue_cola_invalid" those of a task.
        """
        groups: dict[tuple[GlueTask, str], list[tuple[GlueExample, str]]] = defaultdict(list)
        for example, text in zip(references, outputs, strict=True):
            if example.is_labeled:
                groups[example.task, example.subset].append((example, text))
        scores: dict[str, float] = {}
        by_suite: dict[str, dict[str, list[float]]] = {suite: defaultdict(list) for suite in SUITES}
        invalid: Counter[str] = Counter()
        for (task, subset), pairs in groups.items():
            predictions: list[Any] = [read_label(example, text) for example, text in pairs]
            golds: list[Any] = [example.answers or example.label for example, _ in pairs]
            found = task_scores(task.name, predictions, golds, [example.group for example, _ in pairs])
            prefix = f"{task.suite}_{task.name}"
            invalid[f"{prefix}_invalid"] += predictions.count(None)
            by_suite[task.suite][task.name] += found.values()
            scores |= {"_".join(filter(None, (prefix, name, subset))): value for name, value in found.items()}
        averages: dict[str, float] = {}
        signatures: dict[str, str] = {}
        for suite, own in by_suite.items():
            if own.keys() - {"wnli"}:
                averages[f"{suite}_average"], signatures[f"{suite}_average_signature"] = suite_average(suite, own)
        if counted := averages or scores:
            signatures["average_signature"] = f"mean of {', '.join(averages) or 'all scores'}"
            averages = {"average": fmean(counted.values()), **averages}
        # A float, because only floats are logged.
        return {**averages, **signatures, **scores, "invalid": float(invalid.total()), **invalid}

    def predictions(self, split: TextPairs, outputs: Sequence[str]) -> tuple[str, str]:
        """JSON lines with task and id, gold and prediction."""
        return json_lines(map(_prediction, split.references, outputs)), "jsonl"


def _sample(examples: Sequence[GlueExample], most: int) -> list[int]:
    """About `most` rows of each task and subset, the same in every run; 0 for all."""
    by_task: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, example in enumerate(examples):
        # The answers to a question of MultiRC stay together.
        by_task[example.task.key, example.subset][example.group or str(row)].append(row)
    rows: list[int] = []
    for groups in by_task.values():
        order, taken = list(groups.values()), list[int]()
        for place in np.random.default_rng(0).permutation(len(order)):
            if most and taken and len(taken) + len(order[place]) > most:
                break
            taken += order[place]
        rows += taken
    return sorted(rows)


def _prediction(example: GlueExample, text: str) -> dict[str, Any]:
    """A line of the predictions file.

    `predicted` is null if the output `text` is not a label, `gold` if the label is hidden.
    """
    words = dict[Any, str](enumerate(example.task.labels))
    gold, predicted = (words.get(value, value) for value in (example.label, read_label(example, text)))
    extra = {name: value for name, value in (("subset", example.subset), ("group", example.group)) if value}
    shown = {"gold": list(example.answers) or gold, "predicted": predicted, "text": text}
    return {"task": example.task.key, "id": example.id, **extra, **shown}


@dataclass(frozen=True)
class SuperGlue(Glue):
    """SuperGLUE: BoolQ, CB, COPA, MultiRC, ReCoRD, RTE, WiC and WSC; with `together` GLUE as well."""

    name: ClassVar[str] = "superglue"
