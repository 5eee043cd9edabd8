"""What a comparison will do: everything is read and checked here, before anything is written or trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.examples import Long
from ..tasks import UserError
from ..tasks.base import Task
from ..tasks.types import Split
from ..training.failures import one_line
from ..training.preparation import Data
from ..training.settings import Settings, build_config, read_settings, read_task_options
from ..training.source import Source
from .rows import Row, closest_d_ff
from .sources import Sources, find_sources
from .vocabulary import describe_tokenizer, one_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["Part", "Plan", "Scoring", "Shared", "Size", "make_plan", "without_row"]

# What of the settings is a row's own; the overrides only say how the rest came about.
_OWN = {"synthesizer", "seed", "overrides"}


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What all runs of a comparison have in common; the arguments are those of `read_settings`.

    Args:
        where: what rows start from, as `find_sources` takes it.
    """

    task: Task[Any, Any]
    data: Path
    preset: str
    where: str | None = None
    overrides: Sequence[str] = ()
    long: Long | None = None
    steps: int | None = None
    minutes: float | None = None
    dtype: str | None = None
    compile_model: bool | None = None

    def settings(
        self,
        synthesizer: str = "vanilla",
        own: Sequence[str] = (),
        seed: int = 0,
        source: Source | None = None,
    ) -> Settings:
        """The settings of one run, with overrides of its `own` after those of all."""
        return read_settings(
            synthesizer=synthesizer,
            preset=self.preset,
            seed=seed,
            overrides=[*self.overrides, *own],
            long=self.long,
            steps=self.steps,
            minutes=self.minutes,
            dtype=self.dtype,
            compile_model=self.compile_model,
            task=type(self.task),
            start=None if source is None else source.settings,
        )


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How the selected checkpoint of a run is scored.

    Args:
        splits: the parts of the data to score it on.
        search: options of how text is generated, as `Task.search` takes them.
        truncate: cut inputs over the maximum length, rather than refuse them.
    """

    splits: Sequence[str] = ("test",)
    search: Mapping[str, Any] = field(default_factory=dict)
    truncate: bool = False


@dataclass(frozen=True)
class Part:
    """A split to score: the name that it has in the data, that which the user asked for, what is in it."""

    name: str
    asked: str
    fingerprint: dict[str, Any]


@dataclass(frozen=True)
class Size:
    """The trainable parameters of a row's model, and of a control row the d_ff that was chosen for them."""

    parameters: int
    d_ff: int | None = None


@dataclass(frozen=True)
class Plan:
    """A comparison, checked.

    Attributes:
        seeds: the seeds of each row, in the order of the table.
        sizes: the size of each row's model.
        settings: what all runs share of their settings.
        fingerprints: of the training and validation data.
        tests: the splits to score.
        search: how text is generated for them, every option of it; None for a task that generates none.
        tokenizer: how many pieces the tokenizer has, and a digest that tells it from others.
        sources: the runs to start from; None where all weights are new.
    """

    shared: Shared
    scoring: Scoring
    seeds: dict[Row, list[int]]
    sizes: dict[Row, Size]
    settings: dict[str, Any]
    fingerprints: dict[str, Any]
    tests: list[Part]
    search: dict[str, Any] | None
    tokenizer: dict[str, Any]
    sources: Sources | None = None

    def source(self, row: Row, seed: int) -> Source | None:
        """What a run starts from."""
        return None if self.sources is None else self.sources.runs[row, seed]

    def run_settings(self, row: Row, seed: int) -> Settings:
        """The settings of one run."""
        d_ff = self.sizes[row].d_ff
        own = [*row.overrides, *([f"d_ff={d_ff}"] if d_ff else [])]
        return self.shared.settings(row.synthesizer, own, seed, self.source(row, seed))

    def record(self) -> dict[str, Any]:
        """What must be the same whenever the comparison goes on."""
        return {
            "task": self.shared.task.name,
            "options": self.shared.task.lasting_options(),
            "settings": self.settings,
            "data": self.fingerprints,
            "tokenizer": self.tokenizer,
            # Not where from: runs may be moved, and each of this comparison keeps a digest of the weights that it had.
            "from": self.sources is not None,
        }

    def describe(self) -> Iterator[str]:
        """A line for each row, and one for what they share."""
        width = max(len(row.label) for row in self.seeds)
        for row, size in self.sizes.items():
            control = f"  (d_ff {size.d_ff:,}, to match {row.match})" if size.d_ff else ""
            yield f"{row.label:{width}}  {size.parameters:>13,} parameters{control}"
        whose = "made from the same training data" if self.sources is None else f"that of {self.sources.where}"
        yield f"one tokenizer for all rows, of {self.tokenizer['pieces']:,} pieces, {whose}"


def make_plan(shared: Shared, scoring: Scoring, seeds: dict[Row, list[int]]) -> Plan:
    """Check a comparison.

    Raises:
        UserError: a setting, the data, a split to score or a row cannot be used.
    """
    task, sources = shared.task, _find_sources(shared, seeds)
    for row, numbers in seeds.items():
        if own := read_task_options(type(task), row.overrides):
            raise UserError(f"got {', '.join(own)} in the row {row.label!r}; all rows are of one task: use --set")
        for seed in numbers:
            source = None if sources is None else sources.runs[row, seed]
            shared.settings(row.synthesizer, row.overrides, seed, source)
    base = _base(shared, sources)
    search = task.search(scoring.search)
    task.check()
    data = Data.read(task, shared.data)
    parts = {split: task.read(shared.data, split) for split in scoring.splits}
    config = build_config(base)
    maximum = config.max_position_embeddings
    if sources is None:
        tokenizer = task.tokenizer(data.train, config.vocab_size, maximum)
    else:
        tokenizer = task.taken_over(one_tokenizer(sources.runs.values()))
    for asked, part in parts.items():
        if not task.can_score(part):
            raise UserError(
                f"{part.name}: got --split {asked}, whose answers are hidden; expected one that can be scored, such as "
                "--split valid"
            )
    if not scoring.truncate and not scoring.search.get("split_long"):
        for part in parts.values():
            _refuse_long(task, part, tokenizer, maximum)
    changes = task.config_changes(data.train, tokenizer)
    return Plan(
        shared,
        scoring,
        seeds,
        sizes={row: _size(shared, row, changes, sources, numbers[0]) for row, numbers in seeds.items()},
        settings=without_row(base),
        fingerprints=data.fingerprints(),
        tests=[Part(part.name, asked, part.fingerprint()) for asked, part in parts.items()],
        search=search.to_dict() if search else None,
        tokenizer=describe_tokenizer(tokenizer),
        sources=sources,
    )


def _find_sources(shared: Shared, seeds: Mapping[Row, Sequence[int]]) -> Sources | None:
    if shared.where is not None:
        return find_sources(shared.where, type(shared.task), seeds)
    for row in seeds:
        if row.scratch:
            raise UserError(f"got the row {row.label!r} without --from; all rows start from new weights then")
    return None


def _base(shared: Shared, sources: Sources | None) -> Settings:
    """The settings of a run that has none of its own."""
    if sources is None:
        return shared.settings()
    # A control row has a d_ff of its own.
    row, seed = min(sources.runs, key=lambda key: key[0].match is not None)
    return replace(shared.settings(row.synthesizer, source=sources.runs[row, seed]), synthesizer_options={})


def without_row(settings: Settings) -> dict[str, Any]:
    """The settings that rows and seeds do not differ in, unless a row says so."""
    return {name: value for name, value in settings.to_dict().items() if name not in _OWN}


def _refuse_long(task: Task[Any, Any], split: Split, tokenizer: PreTrainedTokenizerFast, maximum: int) -> None:
    """Scoring would refuse them too, hours later."""
    over = task.too_long(split, tokenizer, maximum)
    if over:
        raise UserError(
            f"{split.name}: {over} of {len(split)} {task.unit} are longer than the maximum of {maximum} tokens; choose "
            f"what becomes of them with {task.on_long()}, or raise max_position_embeddings"
        )


def _size(shared: Shared, row: Row, changes: Mapping[str, Any], sources: Sources | None, seed: int) -> Size:
    source = None if sources is None else sources.runs[row, seed]

    def count(synthesizer: str, *own: str) -> int:
        settings = shared.settings(synthesizer, [*row.overrides, *own], source=source)
        try:
            # Without memory and random numbers: only the shapes count.
            with torch.device("meta"):
                model = shared.task.build(build_config(settings, **changes))
        except (ValueError, TypeError, RuntimeError) as error:
            raise UserError(f"row {row.label}: the model cannot be built: {one_line(error)}") from error
        return int(model.num_parameters(only_trainable=True))

    if row.match is None:
        return Size(count(row.synthesizer))
    if source is not None:
        # It was chosen when the source was trained.
        return Size(count(row.synthesizer), build_config(source.settings).d_ff)
    try:
        d_ff = closest_d_ff(lambda d_ff: count(row.synthesizer, f"d_ff={d_ff}"), count(row.match))
    except UserError as error:
        raise UserError(f"row {row.label}: {error}") from error
    return Size(count(row.synthesizer, f"d_ff={d_ff}"), d_ff)
