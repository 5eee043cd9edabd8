"""Classification of texts and pairs of texts, and regression, by an encoder with a head."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from ..data.batching import Share
from ..data.classes import listed
from ..data.classification import Column, without_breaks
from ..data.examples import Examples, Long, fit_length
from ..data.glue import GLUE
from ..data.text_examples import TextExample, TextExamples, frame_texts, join_sides, text_collate, text_tokenizer
from ..errors import UserError
from ..metrics.glue import accuracy, glue_scores, pearson_spearman
from ..metrics.superglue import macro_f1
from .base import Task
from .classified_texts import ClassifiedTexts, TextReader
from .extras import require
from .types import Evaluation, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["Classification"]

# What stands for the one label of a regression.
_NUMBER = "score"


@dataclass(frozen=True)
class Classification(Task[ClassifiedTexts, TextExample]):
    """A class, or a number, for a text or a pair of texts, by an encoder alone: a new one, or a pretrained model's.

    Args:
        text: the column of the text, by its name in the header or its number from 1; several are joined by a space. By
            default what known data sets call it.
        text_pair: that of the second text of a pair.
        label: that of the class.
        header: whether the first line of a CSV or TSV file names the columns; by default where a column has a name.
        format: "csv", "tsv" or "jsonl"; by default what the names of the files end with.
        classes: what the classes are called, in the order of the files' own values: of numbers, or of the alphabet. By
            default as the files write them.
        ignored_labels: examples with these are left out, like the "-" of SNLI.
        regression: the label is a number.
        breaks: read `<br />` as a space.
        held_out: this share of the training file is the split "valid", with all examples of one first text on the same
            side; 0 where "valid" has a file of its own.
        glue_task: read the official files of a task of GLUE ("sst2") instead.
        skip_bad_lines: leave malformed lines out and count them, rather than refuse them.
        subset, revision: of a data set on the hub (hub:OWNER/NAME), whose columns are "text" and "label" by default.
    """

    text: str | int | list[str | int] | None = None
    text_pair: str | int | list[str | int] | None = None
    label: str | int | None = None
    header: bool | None = None
    format: Literal["csv", "tsv", "jsonl"] | None = None
    classes: list[str | int] | None = None
    ignored_labels: list[str | int] | None = None
    regression: bool = False
    breaks: bool = True
    held_out: float = 0.0
    glue_task: str | None = None
    skip_bad_lines: bool = False
    subset: str | None = None
    revision: str | None = None
    name: ClassVar[str] = "classification"
    model_class: ClassVar[str] = "SynthesizerForSequenceClassification"
    starts_from: ClassVar[frozenset[str]] = frozenset({"SynthesizerForConditionalGeneration"})
    score_labels: ClassVar[Mapping[str, str]] = {
        "accuracy": "accuracy",
        "macro_f1": "macro-F1",
        "f1": "F1",
        "matthews": "MCC",
        "pearson": "Pearson",
        "spearman": "Spearman",
        "loss": "loss",
    }
    selects_by: ClassVar[str] = "accuracy"
    larger_is_better: ClassVar[bool] = True
    unit: ClassVar[str] = "texts"
    packages: ClassVar[tuple[str, ...]] = ("scikit-learn", "scipy")

    def __post_init__(self) -> None:
        self.reader()
        # The class knows no options: what numbers are selected by is a matter of the instance.
        if self.is_regression:
            object.__setattr__(self, "selects_by", "pearson")
        elif self.glue_task == "cola":
            object.__setattr__(self, "selects_by", "matthews")

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers."""
        return self.regression or (self.glue_task is not None and not GLUE[self.glue_task].labels)

    def reader(self) -> TextReader:
        """What reads the files.

        Raises:
            UserError: options exclude each other, or a value cannot be.
        """
        return TextReader(
            text=_columns(self.text),
            pair=_columns(self.text_pair),
            label=self.label,
            header=self.header,
            kind=self.format,
            names=tuple(map(str, self.classes or ())),
            ignored=frozenset(map(str, self.ignored_labels or ())),
            regression=self.regression,
            breaks=self.breaks,
            held_out=self.held_out,
            glue_task=self.glue_task,
            skip_bad_lines=self.skip_bad_lines,
            subset=self.subset,
            revision=self.revision,
        )

    def check(self) -> None:
        """Refuse to start where the metrics are not installed."""
        require("scipy.stats" if self.is_regression else "sklearn.metrics", "glue", "scoring of classification")

    def read(self, data: Path, split: str) -> ClassifiedTexts:
        """Read the file of a split, packed or not. The classes are those of the training file, where that is there.

        Raises:
            UserError: a file is missing or cannot be read, or has another class.
        """
        return self.reader().read(data, split)

    def tokenizer(self, split: ClassifiedTexts, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
        """A vocabulary learned from the texts; a sequence is `<s> text </s>`, of a pair `<s> text </s> text </s>`."""
        return text_tokenizer([text for row in split.records for text in row.texts], vocab_size, max_length)

    def taken_over(self, tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
        """Its pieces, and `<s>` and `</s>` around a text as in `tokenizer`."""
        return frame_texts(tokenizer)

    def fill(self, model: PreTrainedModel, trained: PreTrainedModel) -> str | None:
        """The encoder, and the head where it has the same classes; types of tokens that are new start at zero."""
        old, new, news = trained.state_dict(), model.state_dict(), list[str]()
        kept = {name: value for name, value in old.items() if name.startswith("encoder.")}
        if any(name.startswith("classifier.") for name in old) and _says_the_same(model, trained):
            kept |= {name: value for name, value in old.items() if name.startswith("classifier.")}
        else:
            kept |= {name: value for name, value in new.items() if name.startswith("classifier.")}
            news.append(f"the head is new, for {listed(_class_names(model))}")
        for name in (name for name in new if name.startswith("token_types.")):
            kept[name] = old[name] if name in old else torch.zeros_like(new[name])
            if name not in old:
                news.append("the types of tokens start at zero")
        model.load_state_dict(kept)
        return "; ".join(news) or None

    def examples(
        self,
        split: ClassifiedTexts,
        tokenizer: PreTrainedTokenizerFast,
        maximum: int,
        long: Long = "error",
        training: bool = False,
    ) -> TextExamples:
        """Ids of all texts, or pairs, of at most `maximum` tokens. Of a pair that is truncated the longer side is cut.

        Raises:
            UserError: one is longer and `long` is "error"; none is left; or the classes are not known.
        """
        labels = split.indices(split.known_classes()) if not self.is_regression else split.numbers()
        rows = [row for row, label in enumerate(labels) if label is not None]
        texts = [split.records[row].texts for row in rows]
        sequences, firsts, over = join_sides(tokenizer, texts, maximum if long == "truncate" else None)
        advice = "pass --drop-long to leave such texts out, or --truncate to cut them"
        kept, _ = fit_length({f"{split.name} texts": sequences}, maximum, long, advice)
        if not kept:
            raise UserError(f"{split.name}: no text is left of {len(split)}")
        return TextExamples(
            [sequences[index] for index in kept],
            [firsts[index] for index in kept],
            [label for row in (rows[index] for index in kept) if (label := labels[row]) is not None],
            [rows[index] for index in kept],
            dropped=len(split) - len(kept),
            truncated=over,
            skipped=split.skipped,
        )

    def collate(self, examples: Sequence[TextExample], pad_token_id: int) -> dict[str, Tensor]:
        """input_ids and attention_mask (B, L), labels (B,); token_type_ids (B, L) of pairs, 1 on the second side."""
        return text_collate(examples, pad_token_id, torch.float32 if self.is_regression else torch.int64)

    def config_changes(self, split: ClassifiedTexts, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
        """The classes, the kind of problem, and two types of tokens for pairs."""
        names = (_NUMBER,) if self.is_regression else split.known_classes().names
        return {
            **super().config_changes(split, tokenizer),
            "problem_type": "regression" if self.is_regression else "single_label_classification",
            "id2label": dict(enumerate(names)),
            "label2id": {name: index for index, name in enumerate(names)},
            "type_vocab_size": 2 if split.sides == 2 else 0,
        }

    def can_score(self, split: ClassifiedTexts) -> bool:
        """Whether it has labels."""
        return any(record.label for record in split.records)

    def validate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        split: ClassifiedTexts,
        examples: Examples[TextExample],
        loss: float,
        share: Share,
    ) -> Scores:
        """Accuracy and macro-F1, or the correlations; of a task of GLUE its official metrics besides."""
        assert isinstance(examples, TextExamples)
        return self._scores(self._outputs(model, examples, share), examples.labels)

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        split: ClassifiedTexts,
        search: Any,
        truncate: bool = False,
    ) -> Evaluation:
        """Score the labeled texts. The file of predictions has all: id, gold, predicted, score.

        `score` is the probability of the class predicted, and null for regression; `gold` is null where it is hidden.
        """
        names = _class_names(model)
        golds = split.numbers() if self.is_regression else split.indices(split.classes_of(names))
        texts = [record.texts for record in split.records]
        outputs, over = self._predict(model, tokenizer, texts, truncate, f"{split.name} texts")
        labeled = [row for row, gold in enumerate(golds) if gold is not None]
        scores = self._scores(outputs[labeled], [gold for gold in golds if gold is not None]) if labeled else {}
        lines = [
            {"id": record.id, "gold": _named(gold, names, self.is_regression), **self._described(output, names)}
            for record, gold, output in zip(split.records, golds, outputs, strict=True)
        ]
        predictions = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        return Evaluation(
            scores,
            len(labeled),
            predictions,
            "jsonl",
            answered=len(texts),
            truncated=over,
            skipped=split.skipped,
        )

    def generate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        lines: Sequence[str],
        search: Any,
        truncate: bool = False,
        where: str = "input",
        first_line: int = 1,
    ) -> tuple[list[str], int]:
        """The class, or the number, for each line; that of a pair has a tab between its texts. Blank lines stay blank.

        Raises:
            UserError: a line is too long and `truncate` is off, or is no pair where the model is of pairs.
        """
        rows = [row for row, line in enumerate(lines) if line.strip()]
        paired = bool(model.config.type_vocab_size)
        texts = [tuple(map(self._as_read, lines[row].split("\t") if paired else [lines[row]])) for row in rows]
        if paired:
            for row, sides in zip(rows, texts, strict=True):
                if len(sides) != 2 or not all(sides):
                    raise UserError(
                        f"{where}, line {first_line + row}: expected a pair of texts with a tab between them"
                    )
        outputs, over = self._predict(model, tokenizer, texts, truncate, where)
        names = _class_names(model)
        results = [""] * len(lines)
        for row, output in zip(rows, outputs, strict=True):
            results[row] = str(self._described(output, names)["predicted"])
        return results, over

    def _as_read(self, text: str) -> str:
        """`text` as it would be in a file."""
        return (without_breaks(text) if self.breaks and self.glue_task is None else text).strip()

    def _predict(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        texts: Sequence[tuple[str, ...]],
        truncate: bool,
        where: str,
    ) -> tuple[np.ndarray, int]:
        """What the model says of texts, (N, labels), and how many were cut."""
        maximum = model.config.max_position_embeddings
        sequences, firsts, over = join_sides(tokenizer, texts, maximum if truncate else None)
        fit_length({where: sequences}, maximum, "error", "pass --on-long truncate to cut them")
        examples = TextExamples(sequences, firsts, [0] * len(texts), list(range(len(texts))))
        return self._outputs(model, examples, Share()), over

    @torch.inference_mode()
    def _outputs(self, model: PreTrainedModel, examples: TextExamples, share: Share) -> np.ndarray:
        """Probabilities of the classes (N, classes), or numbers (N, 1)."""
        pad_token_id: Any = model.config.pad_token_id
        was_training, results = model.training, dict[int, list[float]]()
        costs = examples.lengths()[:, 0] if len(examples) else np.zeros(0, dtype=np.int64)
        model.eval()
        try:
            # The longest first: if memory does not suffice, it shows at once.
            for rows in share.batches(costs, np.argsort(-costs, kind="stable")):
                batch = self.collate([examples[row] for row in rows], pad_token_id)
                del batch["labels"]
                logits = model(**{name: value.to(model.device) for name, value in batch.items()}).logits.float()
                output = logits if self.is_regression else logits.softmax(-1)
                results.update(zip(rows, output.tolist(), strict=True))
        finally:
            model.train(was_training)
        return np.array(share.merge(results)).reshape(len(examples), len(_class_names(model)))

    def _scores(self, outputs: np.ndarray, golds: Sequence[int | float]) -> Scores:
        if self.is_regression:
            return {**pearson_spearman(outputs[:, 0].tolist(), golds)}
        predictions: list[int] = outputs.argmax(1).tolist()
        classes: list[int] = [int(gold) for gold in golds]
        official = glue_scores(self.glue_task, predictions, classes) if self.glue_task is not None else {}
        official.pop("invalid", None)
        return {
            "accuracy": accuracy(predictions, classes),
            "macro_f1": macro_f1(predictions, classes, outputs.shape[1]),
            **official,
        }

    def _described(self, output: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        if self.is_regression:
            return {"predicted": round(float(output[0]), 4), "score": None}
        best = int(output.argmax())
        return {"predicted": names[best], "score": round(float(output[best]), 6)}


def _columns(given: str | int | list[str | int] | None) -> tuple[Column, ...]:
    return () if given is None else tuple(given) if isinstance(given, list) else (given,)


def _class_names(model: PreTrainedModel) -> tuple[str, ...]:
    names: Mapping[int, str] = cast(Any, model.config).id2label
    return tuple(names[index] for index in range(len(names)))


def _says_the_same(model: PreTrainedModel, other: PreTrainedModel) -> bool:
    """Whether the outputs of two models are of the same classes in the same order, or numbers both."""
    return all(getattr(model.config, name) == getattr(other.config, name) for name in ("id2label", "problem_type"))


def _named(gold: int | float | None, names: Sequence[str], regression: bool) -> str | float | None:
    return gold if regression or gold is None else names[int(gold)]
