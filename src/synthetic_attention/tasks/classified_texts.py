"""Texts and pairs with their classes or numbers, and which files they come from."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UserError
from .readers.benchmark_hub import read_hub_task
from .readers.classification import (
    ENDINGS,
    Classes,
    Column,
    Columns,
    FileKind,
    LabeledText,
    guess_columns,
    read_labeled,
    without_breaks,
)
from .readers.files import split_file
from .readers.glue import GLUE, glue_file, read_glue
from .readers.hub import HubSet, is_hub_name
from .readers.lines import Parsed
from .text import fingerprint

if TYPE_CHECKING:
    pass

__all__ = ["ClassifiedTexts", "TextReader"]


@dataclass(frozen=True)
class ClassifiedTexts:
    """A split as it was read.

    Args:
        records: texts and labels; the label is "" where it is hidden.
        classes: those of the training data; None where that is not there, and for regression.
        skipped: lines that were malformed.
    """

    name: str
    records: list[LabeledText]
    classes: Classes | None
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.records)

    @property
    def sides(self) -> int:
        """Texts of an example: 1, or 2 of pairs."""
        return len(self.records[0].texts)

    def fingerprint(self) -> dict[str, str | int]:
        """What tells whether two runs read the same."""
        lines = [json.dumps([*record.texts, record.label], ensure_ascii=False) for record in self.records]
        return {"split": self.name, "texts": len(lines), "sha256": fingerprint(lines)}

    def known_classes(self) -> Classes:
        """The classes of the training data.

        Raises:
            UserError: that was not there.
        """
        if self.classes is None:
            raise UserError(f"{self.name}: the classes are those of the training file, which is not there")
        return self.classes

    def classes_of(self, names: Sequence[str]) -> Classes:
        """The classes of a model that calls them `names`, as these files write them.

        Raises:
            UserError: the files have others.
        """
        if self.classes is not None:
            if self.classes.names != tuple(names):
                raise UserError(
                    f"{self.name}: the classes of the data are {', '.join(self.classes.names)}, those of the model "
                    f"{', '.join(names)}"
                )
            return self.classes
        found = {record.label for record in self.records} - {""}
        if found <= {*names}:
            return Classes(tuple(names), tuple(names))
        if len(found) == len(names):
            return Classes.of(found, names)
        raise UserError(
            f"{self.name}: got the classes {', '.join(sorted(found))}; expected those of the model, "
            f"{', '.join(names)}, or the training file beside this one, which says what is which"
        )

    def indices(self, classes: Classes) -> list[int | None]:
        """The class of each text; None where it is hidden."""
        return [classes.index(record.label) if record.label else None for record in self.records]

    def numbers(self) -> list[float | None]:
        """The number of each text; None where it is hidden."""
        return [float(record.label) if record.label else None for record in self.records]


@dataclass(frozen=True)
class TextReader:
    """Reads the files of a classification; the arguments are the options of the task.

    Raises:
        UserError: options exclude each other, or a value cannot be.
    """

    text: tuple[Column, ...]
    pair: tuple[Column, ...]
    label: Column | None
    header: bool | None
    kind: FileKind | None
    names: tuple[str, ...]
    ignored: frozenset[str]
    regression: bool
    breaks: bool
    held_out: float
    glue_task: str | None
    skip_bad_lines: bool
    subset: str | None
    revision: str | None

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise UserError(f"got held_out={self.held_out}; expected 0 ≤ held_out < 1")
        if self.glue_task is not None and self.glue_task not in GLUE:
            raise UserError(f"got glue_task={self.glue_task!r}; expected one of: {', '.join(GLUE)}")
        if bool(self.text) != (self.label is not None) or bool(self.pair) > bool(self.text):
            raise UserError("got one of the columns text and label; expected both, or neither where names are known")
        if self.text:
            self._columns(Path())
        others = self.text or self.names or self.ignored or self.regression
        if self.glue_task is not None and others:
            raise UserError("got glue_task with options of other files; expected it alone")
        if self.regression and self.names:
            raise UserError("got regression and classes; expected one of them")
        if len({*self.names}) < len(self.names):
            raise UserError(f"got classes {', '.join(self.names)}; expected a name of its own for each")

    def read(self, data: Path, split: str) -> ClassifiedTexts:
        """The texts of a split.

        Raises:
            UserError: a file is missing or cannot be read, or has another class than the training file.
        """
        if self.glue_task is not None:
            return self._read_glue(data, self.glue_task, split)
        shares = self.held_out > 0 and split in ("train", "valid")
        path = data if is_hub_name(data) else split_file(data, "train" if shares else split, ENDINGS)
        classes = None if self.regression or split == "train" else self._training_classes(data)
        if is_hub_name(data):
            parsed = self._read_hub(data, "train" if shares else split)
        else:
            known = self._with_ignored(classes)
            parsed = read_labeled(path, self._columns(path), self.kind, known, self.skip_bad_lines)
        records = [record for record in parsed.records if record.label not in self.ignored]
        if self.regression:
            _check_numbers(path, records)
        elif split == "train":
            # Before any is held out: a class that is only there is one too.
            classes = Classes.of((record.label for record in records), self.names)
        records = self._share(records, split, path)
        name = split if shares or is_hub_name(data) else path.name.split(".")[0]
        return ClassifiedTexts(name, records, classes, parsed.skipped)

    def _share(self, records: list[LabeledText], split: str, path: Path) -> list[LabeledText]:
        """What of the records is the split: what is held out is `valid`, the rest `train`.

        Raises:
            UserError: nothing is.
        """
        if self.held_out > 0 and split in ("train", "valid"):
            records = [record for record in records if _is_held_out(record, self.held_out) == (split == "valid")]
        if not records:
            raise UserError(f"{path}: no text is left for split {split!r}")
        return records

    def _columns(self, path: Path) -> Columns:
        if not self.text or self.label is None:
            return guess_columns(path, self.kind, Columns(header=self.header, breaks=self.breaks))
        return Columns(self.text, self.label, self.pair, self.header, self.breaks)

    def _training_classes(self, data: Path) -> Classes | None:
        """The classes of the training file; None where there is none."""
        whole = replace(self, held_out=0.0)
        if is_hub_name(data):
            return whole.read(data, "train").classes
        try:
            split_file(data, "train", ENDINGS)
        except UserError:
            return None
        return whole.read(data, "train").classes

    def _read_hub(self, data: Path, split: str) -> Parsed[LabeledText]:
        """The rows of a data set on the hub, whose columns are "text" and "label" where they are not given.

        Rows with a blank text are left out and counted: such sets have some, which nobody here can mend.
        """
        text, label = self.text or ("text",), self.label or "label"
        names = tuple(map(str, (*text, *self.pair, label)))
        records, blank = [], 0
        for number, row in enumerate(HubSet.of(data, self.subset, self.revision).rows(split, names)):
            values = [(without_breaks(str(value)) if self.breaks else str(value)).strip() for value in row]
            sides = [values[: len(text)], values[len(text) : -1]][: 2 if self.pair else 1]
            texts = tuple(" ".join(side).strip() for side in sides)
            if all(texts):
                records.append(LabeledText(str(number), texts, values[-1]))
            else:
                blank += 1
        return Parsed(records, blank)

    def _with_ignored(self, classes: Classes | None) -> Classes | None:
        """What a file may have for a class."""
        if classes is None:
            return None
        values = (*classes.values, *self.ignored)
        return Classes(values, values)

    def _read_glue(self, data: Path, task: str, split: str) -> ClassifiedTexts:
        name, labels = split, GLUE[task].labels
        shares = self.held_out > 0 and split in ("train", "valid")
        asked = "train" if shares else split
        if not is_hub_name(data) and data.is_file() and split == "train" and not shares:
            raise UserError(
                f"{data}: a file, and training wants two; expected the folder of train.tsv and dev.tsv, or "
                "--set held_out=0.1, which keeps a tenth of this one for validation"
            )
        if not is_hub_name(data) and data.is_file() and self.held_out > 0 and not shares:
            raise UserError(f"{data}: got split {split!r} of one file, which is trained on; expected --split valid")
        if is_hub_name(data):
            called = f"{asked}_matched" if task == "mnli" and asked in ("valid", "test") else asked
            parsed = Parsed(read_hub_task(HubSet.of(data).name, "glue", task, called, self.revision))
        else:
            path = glue_file(data / "glue" if (data / "glue").is_dir() else data, task, asked)
            parsed, name = read_glue(path, task, self.skip_bad_lines), split if shares else path.name.split(".")[0]

        def written(label: int | float | None) -> str:
            return "" if label is None else labels[int(label)] if labels else str(label)

        records = [
            LabeledText(
                example.id,
                tuple(example.texts.values()),
                written(example.label),
                # Of MNLI, where it comes second, three hypotheses have one premise.
                example.texts.get("premise", ""),
            )
            for example in parsed.records
        ]
        records = self._share(records, split, data)
        return ClassifiedTexts(name, records, Classes(labels, labels) if labels else None, parsed.skipped)


def _is_held_out(record: LabeledText, share: float) -> bool:
    """By the first text, or what else pairs have in common, so that those stay together."""
    digest = hashlib.sha256((record.group or record.texts[0]).encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _check_numbers(path: Path, records: Sequence[LabeledText]) -> None:
    for record in records:
        try:
            number = float(record.label)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UserError(f"{path}: example {record.id} has the label {record.label!r}; expected a number")
