"""Check a comparison before anything is written or trained: data, splits, starting runs, settings and sizes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from ..data.examples import OnLongInput, find_long
from ..data.source import Records, Split
from ..data.tokenizer import encode
from ..errors import UserError, damage_reported
from ..tasks.base import Task, build_model
from ..tasks.generation import evaluation_config, generation_settings
from ..tasks.large import new_tokenizer
from ..tasks.seq2seq import TextPairs
from ..training.run import read_splits
from ..training.run_folder import PretrainedRun, RunFolder
from ..training.settings import Settings, build_config, parse_synthesizer, read_settings, read_task_options
from .rows import Row, folder_name

Sources = Mapping[tuple[Row, int], PretrainedRun]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What all runs of a comparison have in common.

    Args:
        source: the runs to start from, as `find_sources` takes them; None for new weights.
        overrides: `--set` of all rows.
        training: training arguments from flags, as `read_settings` takes them.
        splits: the splits to score the selected checkpoints on.
        generation: options of text generation in these tests.
    """

    task: Task
    data: Path
    preset: str
    source: str | None = None
    overrides: Sequence[str] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    splits: Sequence[str] = ("test",)
    generation: Mapping[str, Any] = field(default_factory=dict)

    def settings(
        self, row: Row, seed: int = 0, source: PretrainedRun | None = None, d_ff: int | None = None
    ) -> Settings:
        """The settings of one run; the overrides of its row follow those of all rows."""
        settings = read_settings(
            synthesizer=row.synthesizer,
            preset=self.preset,
            overrides=[*self.overrides, *row.overrides, *([f"d_ff={d_ff}"] if d_ff else [])],
            task=type(self.task),
            start=None if source is None else source.settings,
            seed=seed,
            **self.training,
        )
        if settings.training.sharding != "none":
            raise UserError(f"got sharding={settings.training.sharding}; compare trains each run in one process")
        return settings


class Plan:
    """A checked comparison.

    Attributes:
        seeds: the seeds of each row, in the order of the table.
        sizes: the number of trainable parameters of each row's model, and for a control row the d_ff that gives it.
        settings: the settings that all runs share.
        fingerprints: of the training and validation data.
        tests: the splits to score, by the names that the user gave.
        on_long: how tests handle inputs over the maximum length; "drop" is for training only.
        generation: all settings of text generation; None for a task without generation.
        scoring: the options of the task that affect scores only.

    Raises:
        UserError: a setting, the data, a split to score or a row cannot be used.
    """

    def __init__(self, comparison: Comparison, seeds: dict[Row, list[int]]) -> None:
        task, self.comparison, self.seeds = comparison.task, comparison, seeds
        self.sources = find_sources(comparison, seeds)
        for row in seeds:
            if row.scratch and not self.sources:
                raise UserError(f"got the row {row.label!r} without --from; then all rows start from new weights")
            if own := read_task_options(type(task), row.overrides):
                raise UserError(f"got {', '.join(own)} in the row {row.label!r}; all rows share one task: use --set")
        first = next(iter(self.sources.values()), None)
        shared = comparison.settings(Row("", next(iter(seeds)).synthesizer if first else "vanilla"), source=first)
        shared.training.check_loggers()
        self.on_long: OnLongInput = "truncate" if shared.training.on_long == "truncate" else "error"
        generation = evaluation_config(task, comparison.generation)
        self.generation = None if generation is None else generation_settings(generation)
        task.check_requirements()
        data = read_splits(task, comparison.data, shared.training)
        self.tests = {split: task.records(comparison.data, split).load() for split in comparison.splits}
        self.fingerprints = {name: split.fingerprint() for name, split in data.items()}
        config, train = build_config(shared), data["train"]
        if first:
            tokenizers = (tokenizer_record(source.run.load_tokenizer()) for source in self.sources.values())
            if len({record["sha256"] for record in tokenizers}) > 1:
                raise UserError(
                    f"{comparison.source}: got runs with several tokenizers; expected one, of the same training text"
                )
            tokenizer = task.adapt_tokenizer(first.run.load_tokenizer())
        else:
            longest, characters = config.max_position_embeddings, shared.training.tokenizer_characters
            tokenizer = new_tokenizer(task, train, config.vocab_size, longest, characters)
        self.tokenizer = tokenizer_record(tokenizer)
        for asked, split in self.tests.items():
            if not split.has_labels:
                raise UserError(f"{split.name}: got --split {asked}, which has no labels; expected one such as valid")
            if self.on_long == "error":
                _check_lengths(task, split, tokenizer, config.max_position_embeddings)
        changes = task.config_changes(train.head() if isinstance(train, Records) else train, tokenizer)
        self.sizes = {
            row: _model_size(comparison, row, changes, self.sources.get((row, each[0]))) for row, each in seeds.items()
        }
        values = shared.to_dict()
        self.settings = {name: values[name] for name in values if name not in ("synthesizer", "overrides")}
        self.settings["training"]["seed"] = None
        self.scoring = {name: value for name, value in asdict(task).items() if name in task.evaluation_options}

    def run_settings(self, row: Row, seed: int) -> Settings:
        """The settings of one run."""
        return self.comparison.settings(row, seed, self.sources.get((row, seed)), self.sizes[row][1])

    def check_run(self, run: RunFolder, row: Row, seed: int) -> None:
        """Raise UserError if a seed cannot be used, or `run` exists and was trained in another way."""
        settings, source = self.run_settings(row, seed), self.sources.get((row, seed))
        if not run.exists:
            return
        info = run.read_info()
        run.check_options(info)
        wanted = _recipe(self.comparison.task, settings, self.fingerprints, source.record() if source else None)
        found = _recipe(run.read_task(info), run.read_settings(info), info["fingerprints"], info.get("from"))
        pairs = ((name, value, found.get(name)) for name, value in wanted.items())
        if listed := ", ".join(f"{name} {mine!r} (there {theirs!r})" for name, mine, theirs in pairs if mine != theirs):
            raise UserError(
                f"{run.path} was trained with other settings; got {listed}. Choose another --output, or move the run "
                "away"
            )


def _check_lengths(task: Task, split: Split, tokenizer: PreTrainedTokenizerFast, maximum: int) -> None:
    """Refuse now what scoring would refuse after the training."""
    if isinstance(split, TextPairs):
        # The model does not read the targets.
        find_long({f"{split.name}{split.sides[0]}": [*map(len, encode(tokenizer, split.sources))]}, maximum, "error")
    else:
        task.encode(split, tokenizer, maximum)


def _model_size(
    comparison: Comparison, row: Row, changes: Mapping[str, Any], source: PretrainedRun | None
) -> tuple[int, int | None]:
    """The number of trainable parameters, and the d_ff of a control row."""

    def parameters(row: Row, d_ff: int | None = None) -> int:
        config = build_config(comparison.settings(row, source=source, d_ff=d_ff), **changes)
        # Without memory and random numbers: only the shapes count.
        with damage_reported("the model", "built"), torch.device("meta"):
            return build_model(comparison.task, config).num_parameters(only_trainable=True)

    d_ff = None
    if row.match is not None and source is not None:
        # It was chosen when the source was trained.
        d_ff = build_config(source.settings).d_ff
    elif row.match is not None:
        # The number of parameters is linear in d_ff.
        smallest, second = (parameters(row, size) for size in (1, 2))
        target = parameters(replace(row, synthesizer=row.match))
        if smallest > target:
            raise UserError(f"row {row.label}: with d_ff=1 it has {smallest:,} parameters; expected at most {target:,}")
        d_ff = 1 + round((target - smallest) / (second - smallest))
    return parameters(row, d_ff), d_ff


def find_sources(comparison: Comparison, seeds: Mapping[Row, Sequence[int]]) -> Sources:
    """The run that each row and seed starts from; empty without `comparison.source`.

    `source` is the path of a run with {row}, {synthesizer} and {seed} in it. They stand for the row's label without
    @from=none, its synthesizer (of a control row the label too, because its size was chosen there), and its seed.

    Raises:
        UserError: a run is missing, unfinished or cannot be started from, or has another synthesizer.
    """
    sources = dict[tuple[Row, int], PretrainedRun]()
    if comparison.source is None:
        return sources
    for row, numbers in seeds.items():
        label = folder_name(row.label.replace("@from=none", ""))
        synthesizer = label if row.match is not None else folder_name(row.synthesizer)
        where = comparison.source.replace("{row}", label).replace("{synthesizer}", synthesizer)
        for seed in numbers:
            path = Path(where.replace("{seed}", str(seed)))
            sources[row, seed] = source = PretrainedRun.open(path, type(comparison.task), row.scratch)
            if not source.finished:
                raise UserError(f"{path}: its training is not finished; finish it first, or rows differ in budget")
            if source.settings.synthesizer != parse_synthesizer(row.synthesizer):
                raise UserError(f"{path}: a run of {source.settings.synthesizer!r}; the row is {row.label!r}")
    return sources


def _recipe(
    task: Task, settings: Settings, fingerprints: Mapping[str, Any], source: Mapping[str, Any] | None
) -> dict[str, Any]:
    """How a run is trained. Of the run to start from, the weights count and not the path: runs may be moved."""
    return {
        "from": source and {name: source[name] for name in ("weights_sha256", "scratch")},
        "task": task.name,
        **{name: value for name, value in asdict(task).items() if name not in task.evaluation_options},
        **vars(settings.training),
        **settings.config.to_dict(),
        **{f"{split}.{name}": value for split, found in fingerprints.items() for name, value in found.items()},
    }


def tokenizer_record(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """The number of tokens, and a digest of the tokenizer's model without truncation and padding."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    return {"size": len(tokenizer), "sha256": hashlib.sha256(json.dumps(model, sort_keys=True).encode()).hexdigest()}
