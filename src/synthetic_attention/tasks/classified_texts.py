"""Texts and pairs with their classes or numbers, and which files they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data.benchmark_hub import read_hub_task
from ..data.classes import Classes, listed
from ..data.classification import (
    ENDINGS,
    BlankFieldError,
    Column,
    Columns,
    FileKind,
    LabeledText,
    guess_columns,
    label_of,
    read_labeled,
    sides_of,
)
from ..data.files import ANY, split_file, split_files
from ..data.glue import GLUE, glue_file, read_glue
from ..data.hub import HubSet, NoSplitError, is_hub_name
from ..data.lines import Parsed, collect
from ..data.text import SPLIT_ALIASES, fingerprint, named_split
from ..errors import UserError

__all__ = ["ClassifiedTexts", "TextReader"]

# What stands for the class in test data on the hub.
_HIDDEN = "-1"


@dataclass(frozen=True)
class ClassifiedTexts:
    """A split as it was read.

    Args:
        records: texts and labels; the label is "" where it is hidden.
        classes: those of the training data; None where that is not there, and for regression.
        skipped: lines that were malformed.
        named: the task says what the classes are called, in the order of the files' own values.
    """

    name: str
    records: list[LabeledText]
    classes: Classes | None
    skipped: int = 0
    named: bool = False

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
        # Names of the classes that were read from the files say nothing of what stands for them elsewhere.
        if self.named and len(found) == len(names):
            return Classes.of(found, names)
        raise UserError(
            f"{self.name}: got the classes {listed(sorted(found))}; expected those of the model, {listed(names)}, or "
            "the training file beside this one, which says what is which"
        )

    def indices(self, classes: Classes) -> list[int | None]:
        """The class of each text; None where it is hidden.

        Raises:
            UserError: a text has another class.
        """
        try:
            return [classes.index(record.label) if record.label else None for record in self.records]
        except UserError as error:
            raise UserError(
                f"{self.name}: {error}; leave examples of a class out with --set 'ignored_labels=[…]'"
            ) from None

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
        more = self.header is not None or self.kind is not None or self.subset is not None
        if self.glue_task is not None and (others or more):
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
        hidden = split not in ("train", *SPLIT_ALIASES["valid"])
        asked = "train" if shares else split
        path = data if is_hub_name(data) else split_file(data, asked, self._endings(data, asked))
        classes = None if self.regression or split == "train" else self._training_classes(data)
        if is_hub_name(data):
            parsed = self._read_hub(data, asked, hidden)
        else:
            known = self._with_others(classes, hidden)
            parsed = read_labeled(path, self._columns(path, hidden), self.kind, known, self.skip_bad_lines)
        records = [record for record in parsed.records if record.label not in self.ignored]
        others = {record.label for record in records} - {"", _HIDDEN}
        if hidden and (_HIDDEN not in classes.values if classes is not None else not others):
            records = [replace(record, label="") if record.label == _HIDDEN else record for record in records]
        if split == "train" and not self.regression:
            # Before any is held out: a class that is only there is one too.
            try:
                classes = Classes.of((record.label for record in records), self.names)
            except UserError as error:
                raise UserError(f"{path}: {error}") from None
        records = self._share(records, split, path)
        name = split if shares or is_hub_name(data) else path.name.split(".")[0]
        return ClassifiedTexts(name, records, classes, parsed.skipped, bool(self.names))

    def _endings(self, data: Path, split: str) -> tuple[str, ...]:
        """What the name of a split's file ends with: anything where the format is given and no ending is known."""
        known, any_file = (split_files(data, split, endings, required=False) for endings in (ENDINGS, ANY))
        return ANY if self.kind is not None and any_file and not known else ENDINGS

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

    def _columns(self, path: Path, hidden: bool = False) -> Columns:
        known = Columns(header=self.header, breaks=self.breaks, hidden=hidden, numeric=self.regression)
        if not self.text or self.label is None:
            return guess_columns(path, self.kind, known)
        return replace(known, text=self.text, label=self.label, pair=self.pair)

    def _training_classes(self, data: Path) -> Classes | None:
        """The classes of the training file; None where there is none."""
        whole = replace(self, held_out=0.0)
        if is_hub_name(data):
            try:
                return whole.read(data, "train").classes
            except NoSplitError:
                return None
        if not split_files(data, "train", self._endings(data, "train"), required=False):
            return None
        return whole.read(data, "train").classes

    def _read_hub(self, data: Path, split: str, hidden: bool) -> Parsed[LabeledText]:
        """The rows of a data set on the hub, whose columns are "text" and "label" where they are not given.

        Rows without a text or a class are left out and counted: such sets have some, which nobody here can mend.

        Raises:
            UserError: a row is malformed otherwise and `skip_bad_lines` is off, or none is left.
        """
        text, label = self.text or ("text",), self.label or "label"
        names = tuple(map(str, (*text, *self.pair, label)))
        columns = Columns(
            names[: len(text)], names[-1], names[len(text) : -1], None, self.breaks, hidden, self.regression
        )

        def parse(number: int, row: tuple[Any, ...]) -> Iterator[LabeledText]:
            fields = dict(zip(names, row, strict=True))
            yield LabeledText(str(number), sides_of(fields, columns), label_of(fields, columns))

        source = HubSet.of(data, self.subset, self.revision)
        rows = enumerate(source.rows(split, names, optional=names[-1:] if hidden else ()))
        where = f"{data}, split {split}"
        return collect(where, rows, parse, self.skip_bad_lines, unit="row", left_out=BlankFieldError)

    def _with_others(self, classes: Classes | None, hidden: bool) -> Classes | None:
        """What a file may have for a class."""
        if classes is None:
            return None
        values = (*classes.values, *self.ignored, *([_HIDDEN] if hidden else []))
        return Classes(values, values)

    def _read_glue(self, data: Path, task: str, split: str) -> ClassifiedTexts:
        split = named_split(split)
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
