"""Classification of texts and pairs of texts, and regression, by an encoder with a head."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from synthetic_attention.models import SynthesizerForConditionalGeneration, SynthesizerForSequenceClassification

from ..data.classification import ENDINGS, Columns, LabeledText, bad_label, clean_br, find_classes, listed, read_labeled
from ..data.examples import (
    Examples,
    NoExamplesError,
    OnLong,
    TextExample,
    TextExamples,
    fit_length,
    join_sides,
    text_collate,
)
from ..data.files import Parsed, fingerprints, named_split, parse_lines, split_file, split_files
from ..data.hub import HubDataset, NoSplitError, is_hub_name
from ..data.records import Records
from ..data.tokenizer import frame_texts, train_tokenizer
from ..errors import UserError, require
from ..metrics.glue import accuracy, macro_f1, pearson_spearman
from .base import Evaluation, EvaluationLoop, Scores, Task
from .seq2seq import json_lines

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers import PreTrainedTokenizerFast as Tokenizer

# The share that is held out if there is no validation file.
_HELD_OUT = 0.1
# A hidden class in test data on the hub.
_HIDDEN = "-1"


@dataclass(frozen=True)
class TextSplit:
    """A split as read from its files.

    Args:
        records: texts and labels; a hidden label is "".
        classes: the labels in the training data and their names; None without training data, and for a regression.
        note: the origin of a held-out split.
        first: the number of the first text, in messages.
    """

    name: str
    records: list[LabeledText]
    classes: Mapping[str, str] | None
    skipped: int = 0
    note: str = ""
    first: int = 1

    def __len__(self) -> int:
        return len(self.records)

    @property
    def has_labels(self) -> bool:
        """Whether any label is known: test sets may hide theirs."""
        return any(record.label for record in self.records)

    def columns(self) -> dict[str, Iterable[str]]:
        """The lines whose digests identify the data."""
        lines = (json.dumps([*record.texts, record.label], ensure_ascii=False) for record in self.records)
        return {"sha256": lines}

    def fingerprint(self) -> dict[str, str | int]:
        """Digests that tell whether two runs read the same data."""
        return {"split": self.name, "texts": len(self), **fingerprints([self.columns()])}


@dataclass(frozen=True)
class Classification(Task[TextSplit, TextExample]):
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
    pretrained_classes: ClassVar[frozenset[type]] = frozenset({SynthesizerForConditionalGeneration})
    score_labels: ClassVar[Mapping[str, str]] = {
        "accuracy": "accuracy",
        "macro_f1": "macro-F1",
        "pearson": "Pearson",
        "spearman": "Spearman",
        "loss": "loss",
    }
    metric_for_best_model: ClassVar[str] = "accuracy"
    greater_is_better: ClassVar[bool] = True
    unit: ClassVar[str] = "texts"
    packages: ClassVar[tuple[str, ...]] = ("scikit-learn", "scipy")

    def __post_init__(self) -> None:
        if not 0 <= (self.held_out or 0) < 1:
            raise UserError(f"got held_out={self.held_out}; expected 0 ≤ held_out < 1")
        if bool(self.text) != (self.label is not None) or bool(self.text_pair) > bool(self.text):
            raise UserError("got one of the columns text and label; expected both, or neither if names are known")
        if self.regression and self.classes:
            raise UserError("got regression and classes; expected one of them")
        if len({*self._names}) < len(self._names):
            raise UserError(f"got classes {', '.join(self._names)}; expected different names")
        if self.regression:
            # The metric depends on the options.
            object.__setattr__(self, "metric_for_best_model", "pearson")

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes or ()))

    def check_requirements(self) -> None:
        """Check that the packages of the metrics are installed."""
        require("scipy.stats" if self.regression else "sklearn.metrics", "glue", "scoring of classification")

    def read(self, data: Path, split: str) -> TextSplit:
        """Read a split. The classes are those of the training data, if that exists.

        A file is training data, of which a part is held out; with `held_out` 0 it is the split.
        """
        hidden = named_split(split) not in ("train", "valid")
        share = 0.0 if hidden else self._held_out(data)
        asked = "train" if share else split
        classes = None if self.regression or asked == "train" else self._training_classes(data)
        ignored = tuple(map(str, self.ignored_labels or ()))
        known = (*classes, *ignored, *[_HIDDEN][:hidden]) if classes else ()
        source = self._source(data, asked, hidden, known)
        name, records, labels, skipped = source.name, list[LabeledText](), set[str](), 0
        if share:
            name = named_split(split)
        for record in source.read():
            if record is None:
                skipped += 1
            elif record.label not in ignored:
                labels.add(record.label)
                if not share or _is_held_out(record, share) == (name == "valid"):
                    records.append(record)
        found = labels - {""}
        if hidden and (_HIDDEN not in classes if classes else found == {_HIDDEN}):
            records = [record._replace(label="") if record.label == _HIDDEN else record for record in records]
        if classes is None and not self.regression:
            try:
                classes = self._classes(asked, found)
            except UserError as error:
                raise UserError(f"{data}, split {split!r}: {error}") from None
        if not records:
            raise UserError(f"{data}: no text is left for split {split!r}")
        return TextSplit(name, records, classes, skipped, _held_out_note(name, share))

    def records(self, data: Path, split: str, stream: bool = False) -> Records[LabeledText]:
        """The labeled texts of the training or validation split, without those with ignored labels."""
        share, name = self._held_out(data, stream), named_split(split)
        if share and stream:
            raise UserError(f"{data}: got --streaming, for which the validation needs data of its own; found none")
        source = self._source(data, "train" if share else split, False, (), stream)
        ignored = tuple(map(str, self.ignored_labels or ()))

        def read() -> Iterator[LabeledText | None]:
            for record in source.read():
                if record is None or not (
                    record.label in ignored or (share and _is_held_out(record, share) != (name == "valid"))
                ):
                    yield record

        return replace(source, name=name if share else source.name, read=read)

    def read_with(
        self, data: Path, split: str, labels: frozenset[str] = frozenset(), stream: bool = False
    ) -> TextSplit:
        """Read the training or validation split."""
        found = super().read_with(data, split, labels, stream)
        return replace(found, note=_held_out_note(found.name, self._held_out(data, stream)))

    def make_split(self, records: Records[Any], rows: Sequence[Any], first: int = 1) -> TextSplit:
        """Some of the labeled texts."""
        parsed = Parsed.of(rows)
        classes = None if self.regression or not records.labels else self._classes("train", {*records.labels})
        return TextSplit(records.name, parsed.records, classes, parsed.skipped, first=first)

    def labels(self, split: TextSplit) -> set[str]:
        """The labels of classes."""
        return set() if self.regression else {record.label for record in split.records}

    def _held_out(self, data: Path, stream: bool = False) -> float:
        """The share of the training data that is the split "valid"; 0 if that has data of its own."""
        if self.held_out is not None:
            return self.held_out
        if is_hub_name(data):
            with suppress(NoSplitError):
                next(HubDataset.of(data, self.subset, self.revision).rows("valid", stream=stream), None)
                return 0.0
        elif data.is_dir():
            train, valid = (split_files(data, split, ENDINGS, required=False) for split in ("train", "valid"))
            return _HELD_OUT if train and not valid else 0.0
        return _HELD_OUT

    def _source(
        self, data: Path, split: str, hidden: bool, known: tuple[str, ...], stream: bool = False
    ) -> Records[LabeledText]:
        """The records of a split. Malformed rows of the hub, like those without text, are skipped."""
        text, pair = _as_tuple(self.text), _as_tuple(self.text_pair)
        columns = Columns(text or ("text",), self.label or "label", pair, hidden, self.regression)
        if not is_hub_name(data):
            path = data if data.is_file() else split_file(data, split, ENDINGS)
            if path == data and (split == "train") == (self.held_out == 0):
                raise UserError(
                    f"{data}: got split {split!r} and held_out={self.held_out}; one training file has the splits "
                    "train and valid, with held_out over 0; to score another file, pass --data"
                )
            columns = replace(columns, text=text, classes=known)
            read = partial(read_labeled, path, columns, self.skip_bad_lines)
            return Records(path.name.split(".")[0], read, (path,))
        source = HubDataset.of(data, self.subset, self.revision)

        def parsed() -> Iterator[LabeledText | None]:
            rows = enumerate(source.rows(split, [str(name) for name in columns.required], stream))
            where = f"{data}, split {split}"
            return parse_lines(where, rows, lambda number, row: [columns.parse(number, row)], True, "row")

        return Records(split, parsed, size=lambda: source.size(split))

    def _training_classes(self, data: Path) -> Mapping[str, str] | None:
        """The classes of the training data; None without training data."""
        if is_hub_name(data) or (data.is_dir() and split_files(data, "train", ENDINGS, required=False)):
            with suppress(NoSplitError):
                records = replace(self, held_out=0.0).records(data, "train")
                return self._classes("train", {record.label for record in records.read() if record is not None})
        return None

    def _classes(self, split: str, found: set[str]) -> Mapping[str, str] | None:
        """The classes `found` in the training data; in another split if names are given for as many."""
        if split == "train":
            return find_classes(found, self._names)
        for values in (found, found - {_HIDDEN}):
            if len(values) == len(self._names) > 0 and not values <= {*self._names}:
                return find_classes(values, self._names)
        return None

    def _labels(self, split: TextSplit, names: Sequence[str] = ()) -> list[int | float | None]:
        """The class of each text, one of `names` if there is a model, or its number; None if it is hidden."""
        if self.regression:
            return [float(record.label) if record.label else None for record in split.records]
        classes = dict(zip(names, names, strict=True)) if split.classes is None else split.classes
        if names and [*classes.values()] != [*names]:
            data, model = listed(classes.values()), listed(names)
            raise UserError(f"{split.name}: the classes of the data are {data}, those of the model {model}")
        indices = {value: index for index, value in enumerate(classes)}
        source, hidden = ("the model", ("", _HIDDEN)) if split.classes is None else ("the training data", ("",))
        for record in split.records:
            if record.label not in indices and record.label not in hidden:
                advice = "" if names else "; leave out others with --set 'ignored_labels=[…]'"
                message = bad_label(record.label, indices, source)
                raise UserError(f"{split.name}, example {record.id}: {message}{advice}")
        return [indices.get(record.label) for record in split.records]

    def train_tokenizer(self, split: TextSplit, vocab_size: int, max_length: int) -> Tokenizer:
        """Sequences are `<s> text </s>`, or `<s> text </s> text </s>` for a pair."""
        texts = [text for row in split.records for text in row.texts]
        return self.adapt_tokenizer(train_tokenizer(texts, vocab_size, max_length))

    def adapt_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """The same tokens, with `<s>` and `</s>` around a text."""
        return frame_texts(tokenizer)

    def encode(
        self, split: TextSplit, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> TextExamples[TextExample]:
        """Token ids of the labeled texts, or pairs; truncation cuts the longer text of a pair."""
        labeled = [(row, label) for row, label in enumerate(self._labels(split)) if label is not None]
        texts = [split.records[row].texts for row, _ in labeled]
        sequences, firsts, over = join_sides(tokenizer, texts, max_length if on_long == "truncate" else None)
        advice = "pass --on-long drop to leave such texts out, or --truncate to cut them"
        kept, _ = fit_length({f"{split.name} texts": sequences}, max_length, on_long, advice, split.first)
        if not kept:
            raise NoExamplesError(f"{split.name}: no text is left of {len(split)}")
        return TextExamples(
            [(sequences[index], firsts[index], labeled[index][1]) for index in kept],
            dropped=len(split) - len(kept),
            truncated=over,
            skipped=split.skipped,
            note=split.note,
        )

    def collate(self, examples: Sequence[TextExample], pad_token_id: int) -> dict[str, Tensor]:
        """input_ids and attention_mask (B, L), labels (B,); token_type_ids (B, L) of pairs, 1 on the second text."""
        return text_collate(examples, pad_token_id, torch.float32 if self.regression else torch.int64)

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

    def validate(self, loop: EvaluationLoop, split: TextSplit, examples: Examples[TextExample], loss: float) -> Scores:
        """Accuracy and macro-F1, or the correlations."""
        assert isinstance(examples, TextExamples)
        return self._scores(self._outputs(loop, examples), [label for *_, label in examples.items])

    def evaluate(self, loop: EvaluationLoop, split: TextSplit) -> Evaluation:
        """Score the labeled texts. The predictions file has all texts, with the probability of the predicted class."""
        names = _class_names(loop.model)
        golds = self._labels(split, names)
        texts = [record.texts for record in split.records]
        outputs, over = self._predict(loop, texts, f"{split.name} texts")
        labeled = [row for row, gold in enumerate(golds) if gold is not None]
        scores = self._scores(outputs[labeled], [gold for gold in golds if gold is not None]) if labeled else {}
        lines = []
        for record, gold, output in zip(split.records, golds, outputs, strict=True):
            named = gold if self.regression or gold is None else names[int(gold)]
            lines.append({"id": record.id, "gold": named, **self._prediction(output, names)})
        return Evaluation(scores, len(labeled), json_lines(lines), truncated=over, skipped=split.skipped)

    def generate(self, loop: EvaluationLoop, lines: Sequence[str], first_line: int = 1) -> tuple[list[str], int]:
        """The class, or the number, for each line; a tab separates the texts of a pair. Blank lines stay blank."""
        rows = [row for row, line in enumerate(lines) if line.strip()]
        paired = bool(loop.model.config.type_vocab_size)
        texts = [tuple(map(clean_br, lines[row].split("\t") if paired else [lines[row]])) for row in rows]
        for row, sides in zip(rows, texts, strict=True):
            if paired and (len(sides) != 2 or not all(sides)):
                raise UserError(f"input, line {first_line + row}: expected a pair of texts with a tab between them")
        outputs, over = self._predict(loop, texts, "input")
        names, results = _class_names(loop.model), [""] * len(lines)
        for row, output in zip(rows, outputs, strict=True):
            results[row] = str(self._prediction(output, names)["predicted"])
        return results, over

    def _predict(self, loop: EvaluationLoop, texts: Sequence[tuple[str, ...]], where: str) -> tuple[np.ndarray, int]:
        """The outputs for texts, (N, labels), and the number of truncated texts."""
        maximum = loop.max_length if loop.on_long == "truncate" else None
        sequences, firsts, over = join_sides(loop.tokenizer, texts, maximum)
        fit_length({where: sequences}, loop.max_length, "error", "pass --on-long truncate to cut them")
        examples = TextExamples([(ids, first, 0.0) for ids, first in zip(sequences, firsts, strict=True)])
        return self._outputs(loop, examples), over

    def _outputs(self, loop: EvaluationLoop, examples: TextExamples[TextExample]) -> np.ndarray:
        """Probabilities of the classes (N, classes), or numbers (N, 1)."""
        costs = np.array([len(sequence) for sequence, *_ in examples.items], dtype=np.int64)

        def step(rows: list[int]) -> list[list[float]]:
            batch = loop.batch(self, examples, rows)
            del batch["labels"]
            logits = loop.model(**batch).logits.float()
            return (logits if self.regression else logits.softmax(-1)).tolist()

        return np.array(loop.run_each(costs, step)).reshape(len(examples), len(_class_names(loop.model)))

    def _scores(self, outputs: np.ndarray, golds: Sequence[int | float]) -> Scores:
        if self.regression:
            return {**pearson_spearman(outputs[:, 0].tolist(), golds)}
        guesses, classes = outputs.argmax(1).tolist(), [int(gold) for gold in golds]
        return {"accuracy": accuracy(guesses, classes), "macro_f1": macro_f1(guesses, classes, outputs.shape[1])}

    def _prediction(self, output: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        if self.regression:
            return {"predicted": round(float(output[0]), 4), "score": None}
        best = int(output.argmax())
        return {"predicted": names[best], "score": round(float(output[best]), 6)}


def _as_tuple(given: str | int | list[str | int] | None) -> tuple[str | int, ...]:
    return () if given is None else tuple(given) if isinstance(given, list) else (given,)


def _class_names(model: PreTrainedModel) -> list[str]:
    return [name for _, name in sorted(cast(Any, model.config).id2label.items())]


def _held_out_note(name: str, share: float) -> str:
    return f"{share:.0%} of the training data, held out (--set held_out=…)" if share and name == "valid" else ""


def _is_held_out(record: LabeledText, share: float) -> bool:
    """By a digest of the first text, so that examples that share it stay together."""
    digest = hashlib.sha256(record.texts[0].encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
