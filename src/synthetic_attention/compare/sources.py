"""The runs that those of a comparison start from: one for each row and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..models import SynthesizerConfig
from ..tasks import UserError
from ..tasks.base import Task
from ..training.settings import parse_synthesizer
from ..training.source import Source
from .folder import ComparisonFolder
from .rows import Row, folder_name

__all__ = ["Sources", "find_sources"]

# What of training does not change its result.
_WITHOUT_EFFECT = ("log_interval", "eval_batch_tokens", "compile")
_PLACES = ("{synthesizer}", "{row}", "{seed}")


@dataclass(frozen=True)
class Sources:
    """What rows and seeds start from.

    Attributes:
        where: as it was given, with an absolute path.
        runs: the run of each row and seed.
    """

    where: str
    runs: Mapping[tuple[Row, int], Source]


def find_sources(where: str, task: type[Task[Any, Any]], seeds: Mapping[Row, Sequence[int]]) -> Sources:
    """The runs that `where` has for the rows and seeds.

    Args:
        where: the path of a run with {synthesizer}, {row} and {seed} in it, which stand for the synthesizer of a row,
            its label (both as names of folders) and its seed; or the folder of a comparison, whose rows are taken by
            label, or else by synthesizer, and by seed.

    Raises:
        UserError: a run is missing, unfinished or cannot be started from, or is of another synthesizer.
    """
    comparison = ComparisonFolder(Path(where))
    record = comparison.read_record()
    if record is None and not any(place in where for place in _PLACES):
        raise UserError(
            f"got --from {where}, which is no comparison; expected the folder of one, or the path of runs with "
            f"{', '.join(_PLACES)} in it"
        )
    runs = {}
    for row, numbers in seeds.items():
        for seed in numbers:
            path = _fill(where, row, seed) if record is None else _match(comparison, record["rows"], row, seed)
            runs[row, seed] = source = Source.open(path, task, row.scratch)
            if not source.finished:
                raise UserError(f"{path}: not trained to its end; go on with it first, or rows differ in budget")
            if source.settings.synthesizer != parse_synthesizer(row.synthesizer):
                raise UserError(f"{path}: a run of {source.settings.synthesizer!r}; the row is {row.label!r}")
    _refuse_mixed(runs)
    return Sources(str(Path(where).absolute()), runs)


def _fill(where: str, row: Row, seed: int) -> Path:
    if row.match is not None and "{row}" not in where:
        raise UserError(
            f"got the row {row.label!r} with --from {where}; a control row has a size of its own, so its run is told "
            "from others by {row}"
        )
    names = (folder_name(row.synthesizer), folder_name(_without_scratch(row.label)), str(seed))
    for place, name in zip(_PLACES, names, strict=True):
        where = where.replace(place, name)
    return Path(where)


def _match(comparison: ComparisonFolder, labels: Mapping[str, Sequence[int]], row: Row, seed: int) -> Path:
    wanted = _without_scratch(row.label)
    label = wanted if wanted in labels or row.match is not None else row.synthesizer
    if label not in labels:
        raise UserError(f"{comparison.path}: no row {label!r} to start from; the rows are: {', '.join(labels)}")
    if seed not in labels[label]:
        there = ", ".join(map(str, labels[label]))
        raise UserError(
            f"{comparison.path}: row {label!r} has no seed {seed}, but {there}; for one seed in place of all, give "
            f"--from {comparison.path}/{{synthesizer}}/seed-{labels[label][0]}"
        )
    return comparison.path / folder_name(label) / f"seed-{seed}"


def _without_scratch(label: str) -> str:
    return label.replace("@from=none", "")


def _refuse_mixed(runs: Mapping[tuple[Row, int], Source]) -> None:
    """Rows are to differ in their synthesizers: refuse runs of other data or training, and models that differ in more.

    d_ff of control rows is their own.
    """
    (_, first), *others = runs.items()
    for (row, seed), source in others:
        for name in dict.fromkeys([*first.recipe, *source.recipe]):
            mine, theirs = source.recipe.get(name), first.recipe.get(name)
            if name not in _WITHOUT_EFFECT and mine != theirs:
                raise UserError(
                    f"{source.run.path}: the run of row {row.label!r}, seed {seed} has {name} {mine!r}, that of "
                    f"{first.run.path} {theirs!r}; expected runs of the same task, data and training"
                )
    shared: dict[str, Any] = {}
    # A field that one run was given and another was not counts there as its default.
    names = dict.fromkeys(name for source in runs.values() for name in source.settings.model)
    for (row, seed), source in runs.items():
        for name in names:
            if name == "d_ff" and row.match is not None:
                continue
            value = source.settings.model.get(name, getattr(SynthesizerConfig, name, None))
            if shared.setdefault(name, value) != value:
                raise UserError(
                    f"{source.run.path}: the model of row {row.label!r}, seed {seed} has {name} {value!r}, others "
                    f"{shared[name]!r}; expected models that differ in their synthesizers alone"
                )
