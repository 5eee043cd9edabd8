"""Classification of texts and pairs of texts, and regression, by an encoder with a head.

Data: CSV, TSV or JSON lines, gzip or not, or a hub data set: texts, or pairs of texts, with a class or number.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from tokenizers import processors
from torch import Tensor
from transformers import PreTrainedModel

from synthetic_attention.models import SynthesizerForSequenceClassification

from ..data.examples import Examples, NoExamplesError, OnLong, find_long, padded_inputs
from ..data.files import MalformedLineError, as_number, listed, named_split
from ..data.source import Records, Source, Split
from ..data.tokenizer import SPECIAL_TOKENS, Tokenizer, encodings
from ..errors import NoSplitError, UserError, require
from ..metrics.glue import accuracy, macro_f1, pearson_spearman
from .base import Evaluation, EvaluationLoop, Scores, Task
from .seq2seq import json_lines

Column = str | int
ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
# Column names of known data sets: the two texts of a pair; a text, or its parts; the class.
_PAIRS = {"sentence1": "sentence2", "premise": "hypothesis", "question1": "question2", "question": "sentence"}
_PAIRS |= {"text": "text_pair", "text1": "text2"}
_TEXTS = ("title description", "title content", "title text", "text", "sentence", "review", "content", "document")
_LABELS = ("label", "labels", "gold_label", "class", "class index", "category", "sentiment", "target", "score")
_BREAK = re.compile(r"(?:\s*<br\s*/?>)+\s*")
# The share that is held out if there is no validation file.
_HELD_OUT = 0.1
# A hidden class in test data on the hub.
_HIDDEN = "-1"


class LabeledText(NamedTuple):
    """One text or two, the class as the file writes it ("" if hidden), and the field `id` or the line's number."""

    id: str
    texts: tuple[str, ...]
    label: str


class Columns(NamedTuple):
    """The columns of the text, of the second text of a pair, and of the class; several of a text are joined by a space.

    They are names of the header or of JSON fields, or numbers from 1 without header.
    """

    text: tuple[Column, ...]
    pair: tuple[Column, ...]
    label: Column


def find_classes(source: object, labels: Iterable[str], names: Sequence[str] = ()) -> dict[str, str]:
    """The classes in `labels` of `source` with their names, sorted as numbers if all are, else alphabetically.

    Args:
        names: names of the classes in that order; by default the labels.
    """
    numbers = {label: as_number(label) for label in labels}
    numeric = None not in numbers.values()
    # Equal numbers (1 and 1.0) are sorted by their text, so that the order is fixed.
    values = sorted(numbers, key=lambda value: (numbers[value] if numeric else 0, value))
    if numeric and not names and not all(float(value).is_integer() for value in values):
        problem = "for numbers pass --set regression=true, else names with --set classes=…"
    elif len(values) < 2:
        problem = "expected at least two"
    elif names and len(names) != len(values):
        problem = f"expected {len(names)}, as many as names in --set classes=…"
    else:
        return dict(zip(values, names or values, strict=True))
    count = f"{len(values)} class{'es' * (len(values) != 1)}"
    advice = "or choose other columns with --set text=… label=…"
    raise UserError(f"{source}: got {count}: {listed(values)}; {problem}, {advice}")


def clean_br(text: str) -> str:
    """One space in place of one or several `<br />`."""
    return _BREAK.sub(" ", text).strip()


def guess_columns(source: object, names: Collection[str], hidden: bool = False) -> Columns:
    """Choose the columns of `source` among `names`; a `hidden` class may have none."""
    known = {name.lower(): name for name in names}
    pairs = [pair for pair in _PAIRS.items() if {*pair} <= {*known}]
    texts = [text.split() for text in _TEXTS if {*text.split()} <= {*known}]
    labels = [known[name] for name in _LABELS if name in known] or ["label"] * hidden
    if len(labels) != 1 or len(pairs) > 1 or not (pairs or texts):
        raise UserError(
            f"{source}: cannot tell the columns of text and class from {listed(names)}; rename them, or train with "
            "--set text=… label=…, and for pairs text_pair=…: names, or numbers from 1 for a file without header"
        )
    sides = [[name] for name in pairs[0]] if pairs else [texts[0], []]
    text, pair = (tuple(known[name] for name in side) for side in sides)
    return Columns(text, pair, labels[0])


def _value(row: Mapping[Any, Any], column: Column, may_lack: bool = False) -> str:
    value = row.get(column)
    text = "" if value is None else str(value).strip()
    is_text = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    if value is not None and not is_text:
        raise MalformedLineError(f"field {column!r} is not text")
    if column not in row and not may_lack:
        known = listed(map(str, row)) or "none"
        raise MalformedLineError(f"no field {column!r}; the fields are: {known} (--set text=… label=…)")
    return text


@dataclass(frozen=True, eq=False)
class TextSplit(Split):
    """Labeled texts.

    Args:
        records: texts and labels; a hidden label is "".
        classes: the labels in the training data and their names; None without training data, and for a regression.
        note: the origin of a held-out split.
    """

    records: list[LabeledText]
    task: Classification
    classes: Mapping[str, str] | None = None
    note: str = ""

    def __len__(self) -> int:
        return len(self.records)

    @property
    def has_labels(self) -> bool:
        """Whether any label is known."""
        return not {record.label for record in self.records} <= {"", *self._hidden}

    @property
    def _hidden(self) -> tuple[str, ...]:
        """The label that may be a hidden one, if there is no training data that tells."""
        return () if self.task.regression or self.classes else (_HIDDEN,)

    def all_texts(self) -> list[str]:
        """The texts, or both of each pair."""
        return [text for record in self.records for text in record.texts]

    def columns(self) -> dict[str, Iterable[str]]:
        """The lines whose digests identify the data."""
        lines = (json.dumps([*record.texts, record.label], ensure_ascii=False) for record in self.records)
        return {"sha256": lines}

    def with_classes(self, classes: Mapping[str, str]) -> TextSplit:
        """The same texts with the classes of the training data, if they have some of its labels, not the names only."""
        hidden = {_HIDDEN} - {*classes}
        labels = {record.label for record in self.records} - {"", *hidden}
        if labels <= {*self.task.class_names} or labels.isdisjoint(classes):
            return self
        rows = [record._replace(label="") if record.label in hidden else record for record in self.records]
        return replace(self, records=rows, classes=classes)

    def values(self, names: Sequence[str] = ()) -> list[int | float | None]:
        """The class of each text, one of `names` if there is a model, or its number; None if it is hidden."""
        labels, classes, named = [record.label for record in self.records], self.classes, self.task.class_names
        if self.task.regression:
            return [float(label) if label else None for label in labels]
        if classes is None:
            # Files have the names, or if there are as many, other labels in their order.
            found = {*labels} - {""}
            possible = (each for each in (found, found - {_HIDDEN}) if len(each) == len(named) > 0)
            others = next(possible, {*named})
            is_named = others <= {*named}
            classes = {each: each for each in names} if is_named else find_classes(self.name, others, named)
        if names and [*classes.values()] != [*names]:
            data, model = listed(classes.values()), listed(names)
            raise UserError(f"{self.name}: the classes of the data are {data}, those of the model {model}")
        indices = {**dict.fromkeys(("", *self._hidden)), **{value: index for index, value in enumerate(classes)}}
        for record in self.records:
            if record.label not in indices:
                source = "the model" if self.classes is None else "the training data"
                raise UserError(
                    f"{self.name}, example {record.id}: got class {record.label!r:.80}; expected one of: "
                    f"{listed(classes)}, the classes of {source}; to skip others train with --set 'ignored_labels=[…]'"
                )
        return [indices[label] for label in labels]


@dataclass(frozen=True)
class Classification(Task):
    """A class, or a number, for a text or a pair of texts, by an encoder: a new one, or that of a pretrained model.

    Args:
        text: the column of the text, by its name or, without header, its number from 1; several are joined by a space.
            By default the names of known data sets; of a hub data set "text".
        text_pair: the column of the second text of a pair, or several.
        label: the column of the class; of a hub data set "label" by default.
        classes: names of the classes, in the order of the files' own values (numbers, or the alphabet).
        ignored_labels: examples with these labels are left out, like "-" in SNLI.
        held_out: this share of the training data is the split "valid"; examples with the same first text stay
            together. By default 0.1 if "valid" has no file of its own.
        regression: the label is a number.
        skip_bad_lines: skip and count malformed lines.
        subset, revision: of a hub data set (hub:OWNER/NAME).
    """

    text: str | int | list[str | int] | None = None
    text_pair: str | int | list[str | int] | None = None
    label: str | int | None = None
    classes: list[str | int] | None = None
    ignored_labels: list[str | int] | None = None
    regression: bool = False
    held_out: float | None = None
    skip_bad_lines: bool = False
    subset: str | None = None
    revision: str | None = None
    name: ClassVar[str] = "classification"
    model_class: ClassVar[type] = SynthesizerForSequenceClassification
    score_labels: ClassVar[Mapping[str, str]] = {
        "accuracy": "accuracy",
        "macro_f1": "macro-F1",
        "pearson": "Pearson",
        "spearman": "Spearman",
        "loss": "loss",
    }
    metric_for_best_model: ClassVar[str] = "accuracy"
    unit: ClassVar[str] = "texts"

    def __post_init__(self) -> None:
        if not 0 <= (self.held_out or 0) < 1:
            raise UserError(f"got held_out={self.held_out}; expected 0 ≤ held_out < 1")
        if bool(self.text) != (self.label is not None) or bool(self.text_pair) > bool(self.text):
            missing = "label" if self.text else "text"
            raise UserError(f"got no column {missing!r}; expected text and label, or neither: --set {missing}=NAME")
        if self.regression and self.classes:
            raise UserError("got regression and classes; expected one of them")
        if self.regression:
            # The metric depends on the options.
            object.__setattr__(self, "metric_for_best_model", "pearson")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes in the options."""
        return tuple(map(str, self.classes or ()))

    def check_requirements(self) -> None:
        """Check that the packages of the metrics are installed."""
        require("scipy.stats" if self.regression else "sklearn.metrics", "glue", "scoring of classification")

    def records(self, data: Path, split: str) -> Records:
        """The labeled texts of a split without those with ignored labels.

        A file is training data with a held-out part; with `held_out` 0 it is the split.
        """
        name = named_split(split)
        hidden = name not in ("train", "valid")
        share = 0.0 if hidden else self.held_out
        if share is None:
            share = 0.0 if self._has(data, "valid") else _HELD_OUT
        asked = "train" if share else split
        if data.is_file() and (asked == "train") == (self.held_out == 0):
            problem, advice = "", "--split valid"
            if self.held_out == 0:
                problem, advice = " with held_out=0", f"--set held_out={_HELD_OUT}"
            raise UserError(
                f"{data}: got split {split!r}{problem}; one file has the splits train and valid, a part that is held "
                f"out: pass {advice}, or --data with another file, or a folder with a file of each split"
            )
        source, classes = self._source(data, asked), cache(lambda: self.training_classes(data))
        note = f"{share:.0%} of the training data, held out (--set held_out=…)" if share and name == "valid" else ""

        def read() -> Iterator[LabeledText | None]:
            for record in self.labeled(source, hidden):
                # Test data may hide classes; without training data, `TextSplit` decides.
                if record and hidden and record.label == _HIDDEN and (known := classes()) and _HIDDEN not in known:
                    yield record._replace(label="")
                elif record is None or not share or _is_held_out(record, share) == (name == "valid"):
                    yield record

        def make(rows: list[LabeledText], **options: int) -> TextSplit:
            known, shown = classes() if rows else None, name if share else source.split
            return TextSplit(shown, rows, self, known, note, **options)

        return Records(source, read, make, (share,))

    def _has(self, data: Path, split: str) -> bool:
        """Whether there is data of "train" or "valid". A file is training data, or with `held_out` 0 neither."""
        if data.is_file():
            return split == "train" and self.held_out != 0
        with suppress(NoSplitError):
            source = self._source(data, split)
            if source.hub:
                next(source.rows(), None)
            return True
        return False

    def _source(self, data: Path, split: str) -> Source:
        if data.is_file():
            return Source(data.name.split(".")[0], (data,))
        return Source.of(data, split, ENDINGS, self.subset, self.revision)

    def labeled(self, source: Source, hidden: bool = False) -> Iterator[LabeledText | None]:
        """The texts and their classes, without those with ignored labels; None for malformed lines.

        Of a hub data set malformed rows, like those without text, are skipped.

        Args:
            hidden: the class may be missing or blank, as in test files.
        """
        text, pair, ignored = map(_as_tuple, (self.text, self.text_pair, self.ignored_labels))
        columns, needed, header = None, list[str](), None
        if text or source.hub:
            columns = Columns(text or ("text",), pair, self.label or "label")
            needed = [*map(str, (*columns.text, *pair, *([] if hidden else [columns.label])))]
            header = () if any(isinstance(name, int) for name in (*columns.text, *pair, columns.label)) else None

        def parse(number: int, row: Any) -> list[LabeledText]:
            nonlocal columns
            if isinstance(row, str):
                raise UserError(f"{source}: expected a file with one of the endings {', '.join(ENDINGS)}")
            columns = columns or guess_columns(source, row, hidden)
            label = _value(row, columns.label, hidden)
            if self.regression and label and as_number(label) is None:
                raise MalformedLineError(f"got the label {label!r}; expected a number")
            # A title may be blank, if there is a text.
            sides = [[_value(row, name) for name in side] for side in (columns.text, columns.pair) if side]
            texts = tuple(clean_br(" ".join(filter(None, side))) for side in sides)
            if not (label or hidden):
                raise MalformedLineError(f"field {columns.label!r} is blank")
            if not all(texts):
                raise MalformedLineError(f"field {columns.text[0]!r} is blank, or its pair")
            place = row["id"] if row.get("id") is not None else number
            return [] if label in map(str, ignored) else [LabeledText(str(place), texts, label)]

        return source.parse(parse, self.skip_bad_lines or bool(source.hub), needed, header)

    def training_classes(self, data: Path) -> Mapping[str, str] | None:
        """The classes of the training data, with their names; None if there is none, and for a regression."""
        if self.regression or not self._has(data, "train"):
            return None
        source = self._source(data, "train")
        return find_classes(source, {record.label for record in self.labeled(source) if record}, self.class_names)

    def adapt_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """The same tokens; a text becomes `<s> text </s>`, and a pair `<s> text </s> text </s>`.

        The tokenizers of T5 and Marian have no `<s>`; then there is none.
        """
        start, end = SPECIAL_TOKENS["bos_token"], SPECIAL_TOKENS["eos_token"]
        found = ((token, tokenizer.backend_tokenizer.token_to_id(token)) for token in (start, end))
        ids = [(token, number) for token, number in found if number is not None]
        first = f"{start} $A {end}" if len(ids) == 2 else f"$A {end}"
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=first, pair=f"{first} $B:1 {end}:1", special_tokens=ids
        )
        # The tokenizer's own encoding of a pair then has token types.
        names = ["input_ids", "token_type_ids", "attention_mask"]
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
        return tokenizer

    def encode(
        self,
        split: TextSplit,
        tokenizer: Tokenizer,
        max_length: int,
        on_long: OnLong = "error",
        training: bool = False,
        labels: Sequence[float] | None = None,
    ) -> Examples:
        """Of each labeled text, or pair, the ids, the number of ids of the first text, and the label.

        Truncation cuts the longer text of a pair. `labels` replace those of the split.
        """
        rows = zip(split.records, split.values() if labels is None else labels, strict=True)
        labeled = [(record.texts, label) for record, label in rows if label is not None]
        inputs = [(sides[0], sides[1]) if len(sides) == 2 else sides[0] for sides, _ in labeled]
        items, cut = [], 0
        encoded = encodings(tokenizer, inputs, max_length if on_long == "truncate" else None)
        for encoding, (_, label) in zip(encoded, labeled, strict=True):
            items.append((np.array(encoding.ids, dtype=np.int32), encoding.type_ids.count(0), label))
            cut += bool(encoding.overflowing)
        lengths = {f"{split.name} texts": [len(ids) for ids, *_ in items]}
        items = [*compress(items, ~find_long(lengths, max_length, on_long, split.first, "texts"))]
        if not items:
            raise NoExamplesError(f"{split.name}: no text is left of {len(split)}")
        dropped = len(split) - len(items)
        return Examples.of(items, dropped=dropped, truncated=cut, skipped=split.skipped, note=split.note)

    def collate(self, examples: Sequence[tuple[Any, ...]], pad_token_id: int) -> dict[str, Tensor]:
        """input_ids and attention_mask (B, L), labels (B,); token_type_ids (B, L) of pairs, 1 on the second text."""
        sequences, firsts, labels = zip(*examples, strict=True)
        batch = padded_inputs(sequences, pad_token_id)
        if any(first < len(row) for row, first in zip(sequences, firsts, strict=True)):
            is_second = torch.arange(batch["input_ids"].shape[1]) >= torch.tensor(firsts)[:, None]
            batch["token_type_ids"] = is_second * batch["attention_mask"]
        return {**batch, "labels": torch.tensor(labels, dtype=torch.float32 if self.regression else torch.int64)}

    def config_changes(self, split: TextSplit, tokenizer: Tokenizer) -> dict[str, Any]:
        """The classes, the type of problem, and two token types for pairs."""
        names = ["score"] if split.classes is None else [*split.classes.values()]
        return {
            **super().config_changes(split, tokenizer),
            "problem_type": "regression" if self.regression else "single_label_classification",
            "id2label": dict(enumerate(names)),
            "label2id": {name: index for index, name in enumerate(names)},
            "type_vocab_size": 2 if len(split.records[0].texts) == 2 else 0,
        }

    def validate(self, loop: EvaluationLoop, split: TextSplit, examples: Examples, loss: float) -> Scores:
        """Accuracy and macro-F1, or the correlations."""
        return self._scores(self._outputs(loop, examples), examples.numbers[:, 1].tolist())

    def evaluate(self, loop: EvaluationLoop, split: TextSplit) -> Evaluation:
        """Score the labeled texts. The predictions file has all texts, with the probability of the predicted class."""
        names = _class_names(loop.model)
        golds = split.values(names)
        outputs, cut = self._predict(loop, split)
        labeled = [row for row, gold in enumerate(golds) if gold is not None]
        scores = self._scores(outputs[labeled], [gold for gold in golds if gold is not None]) if labeled else {}
        lines = []
        for record, gold, predicted in zip(split.records, golds, self._named(outputs, names), strict=True):
            named = gold if self.regression or gold is None else names[int(gold)]
            lines.append({"id": record.id, "gold": named, **predicted})
        return Evaluation(scores, len(labeled), json_lines(lines), truncated=cut, skipped=split.skipped)

    def generate(self, loop: EvaluationLoop, lines: Sequence[str], first_line: int = 1) -> tuple[list[str], int]:
        """The class, or the number, for each line; a tab separates the texts of a pair. Blank lines stay blank."""
        paired, records = bool(loop.model.config.type_vocab_size), []
        for number, line in enumerate(lines, start=first_line):
            sides = tuple(map(clean_br, line.split("\t") if paired else [line]))
            if line.strip():
                if paired and (len(sides) != 2 or not all(sides)):
                    raise UserError(f"input, line {number}: expected a pair of texts with a tab between them")
                records.append(LabeledText(str(number), sides, ""))
        if not records:
            return [""] * len(lines), 0
        outputs, cut = self._predict(loop, TextSplit("input", records, self, first=first_line))
        found = iter(self._named(outputs, _class_names(loop.model)))
        return [str(next(found)["predicted"]) if line.strip() else "" for line in lines], cut

    def _predict(self, loop: EvaluationLoop, split: TextSplit) -> tuple[np.ndarray, int]:
        """The outputs for all texts, with label or not, (N, labels), and the number of truncated texts."""
        examples = self.encode(split, loop.tokenizer, loop.max_length, loop.on_long, labels=[0.0] * len(split))
        return self._outputs(loop, examples), examples.truncated

    def _outputs(self, loop: EvaluationLoop, examples: Examples) -> np.ndarray:
        """Probabilities of the classes (N, classes), or numbers (N, 1)."""

        def step(rows: list[int]) -> list[list[float]]:
            batch = loop.batch(self, examples, rows)
            del batch["labels"]
            logits = loop.model(**batch).logits.float()
            return (logits if self.regression else logits.softmax(-1)).tolist()

        return np.array(loop.run_each(examples.lengths()[:, 0], step))

    def _scores(self, outputs: np.ndarray, golds: Sequence[int | float]) -> Scores:
        if self.regression:
            return {**pearson_spearman(outputs[:, 0].tolist(), golds)}
        guesses, classes = outputs.argmax(1).tolist(), [int(gold) for gold in golds]
        return {"accuracy": accuracy(guesses, classes), "macro_f1": macro_f1(guesses, classes, outputs.shape[1])}

    def _named(self, outputs: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
        """The predictions, with the probability of the predicted class."""
        if self.regression:
            return [{"predicted": round(value, 4), "score": None} for value in outputs[:, 0].tolist()]
        found = zip(outputs.argmax(1).tolist(), outputs.max(1).tolist(), strict=True)
        return [{"predicted": names[index], "score": round(probability, 6)} for index, probability in found]


def _as_tuple(given: str | int | list[str | int] | None) -> tuple[str | int, ...]:
    return () if given is None else tuple(given) if isinstance(given, list) else (given,)


def labels_for(model: PreTrainedModel, split: Any) -> dict[str, Any]:
    """The argument `labels` of `encode`, by the classes of a model; {} for other tasks."""
    return {"labels": split.values(_class_names(model))} if isinstance(split, TextSplit) else {}


def _class_names(model: PreTrainedModel) -> list[str]:
    return [name for _, name in sorted(cast(Any, model.config).id2label.items())]


def _is_held_out(record: LabeledText, share: float) -> bool:
    """By a digest of the first text, so that examples that share it stay together."""
    return int.from_bytes(hashlib.sha256(record.texts[0].encode()).digest()[:8], "big") < share * 2**64
