"""The settings of a run: a preset, and `key=value` on top of it."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from importlib.resources import files
from itertools import chain
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import yaml

from synthetic_attention.models import SynthesizerConfig
from synthetic_attention.synthesizers import OPTIONS, default_options
from synthetic_attention.validation import did_you_mean

from ..errors import UserError, check_value, one_line, user_errors
from ..tasks import FORMER_OPTIONS, get_task, known_tasks, option_types
from ..tasks.base import Task
from .options import TrainingOptions

_QUOTES = ("'", '"')
_TRAINING = TrainingOptions.__dataclass_fields__
_PRESETS = files(__package__) / "presets"
# The fields of a model that a run with `--from` can change: no weight depends on them.
_WITHOUT_WEIGHTS = ("attention_dropout_rate", "classifier_pooling", "dropout_rate", "fused_loss")
# Fields that follow from the tokenizer of a run, or are those of a converted model.
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# The entry of a field in a docstring, with the lines that continue it.
_FIELD = re.compile(r"^ {4}(\w+(?:, \w+)*): (.+(?:\n {8}.+)*)", re.MULTILINE)


class Setting(NamedTuple):
    """A key of `--set`, its value in a preset and its meaning."""

    key: str
    value: Any
    meaning: str
    group: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides the result of a run, except its task and data; run.yaml keeps it."""

    synthesizer: str | list[str] | dict[str, Any]
    preset: str
    training: TrainingOptions
    model: dict[str, Any] = field(default_factory=dict)
    synthesizer_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for YAML."""
        # Through JSON: YAML would mark a list that appears twice with an anchor.
        return json.loads(json.dumps(asdict(self)))

    @cached_property
    def config(self) -> SynthesizerConfig:
        """The model's configuration, before the data is known."""
        if self.model.get("max_position_embeddings") == 1:
            raise UserError("got max_position_embeddings=1; expected at least 2: a token and the end")
        options = self.synthesizer_options or None
        with user_errors():
            return SynthesizerConfig(**self.model, synthesizer=self.synthesizer, synthesizer_options=options)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """The settings that `to_dict` wrote.

        Raises:
            UserError: an entry that `--set` cannot set: of all arguments of transformers, some send or load files.
        """
        known = {"training": {*_TRAINING, *FORMER_OPTIONS}, "model": {*_model_fields(), *_TOKENS}}
        for group, names in known.items():
            check_value(group, entries := values.get(group, {}), dict[str, Any])
            if unknown := entries.keys() - names:
                raise UserError(f"got unknown {group} settings: {', '.join(sorted(map(str, unknown)))}")
        training = {name: value for name, value in values["training"].items() if name not in FORMER_OPTIONS}
        return cls(**{**values, "training": TrainingOptions(**training)})

    @classmethod
    def of_model(cls, config: SynthesizerConfig) -> Settings:
        """The settings of a model that was trained elsewhere; those of training are defaults."""
        return cls(
            synthesizer=config.synthesizer,
            preset="none",
            # They need an end.
            training=TrainingOptions(max_steps=1),
            model={name: getattr(config, name) for name in (*_model_fields(), *_TOKENS)},
            synthesizer_options=config.synthesizer_options or {},
        )

    def with_training(self, **changes: Any) -> Settings:
        """The same settings with other training arguments."""
        return replace(self, training=replace(self.training, **changes))

    def with_budget(self, max_steps: int | None, minutes: float | None) -> Settings:
        """The same settings with another end: if either value is given, it replaces the old steps and minutes."""
        if max_steps is None and minutes is None:
            return self
        return self.with_training(max_steps=-1 if max_steps is None else max_steps, minutes=minutes)

    def with_batches_per_update(self, batches: int | None, processes: int) -> Settings:
        """The same settings with the gradient accumulation that gives so many batches, of all processes, per update.

        None keeps the gradient accumulation.

        Raises:
            UserError: the processes cannot share them evenly.
        """
        if batches is None:
            return self
        if batches < 1 or batches % processes:
            raise UserError(
                f"{batches} batches per update cannot be shared by {processes} processes; use a number of processes "
                f"that divides {batches}, or --batches-per-update with a multiple of {processes}"
            )
        return self.with_training(gradient_accumulation_steps=batches // processes)


def known_presets() -> list[str]:
    """The names of the presets."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _PRESETS.iterdir() if entry.name.endswith(".yaml"))


def read_settings(
    *,
    synthesizer: str | None = None,
    preset: str,
    overrides: Sequence[str] = (),
    task: type[Task] | None = None,
    start: Settings | None = None,
    **training: Any,
) -> Settings:
    """Read a preset and apply `key=value` overrides; `list_settings` has the keys.

    Options of `task` are skipped: `read_task_options` reads them. If max_steps or minutes are given, they replace both
    of the preset; with both, training ends at whichever comes first.

    Args:
        synthesizer: as `parse_synthesizer` takes it; None only with `start`.
        start: the settings of a run whose model is used. The preset then only sets training arguments, and only
            fields without an effect on weights can be overridden (dropout, pooling, fused loss).
        training: training arguments from flags of the command line; None for those that were not given.

    Raises:
        UserError: an unknown preset or key, a wrong value, or a model other than that of `start`.
    """
    if preset not in known_presets():
        raise UserError(f"got unknown preset {preset!r}; expected one of: {', '.join(known_presets())}")
    values = _read_preset(preset)
    options = values["model"].pop("synthesizer_options", {}) if start is None else start.synthesizer_options
    options, model, changes = copy.deepcopy(options), dict[str, Any](), dict[str, Any]()
    for override in overrides:
        key, value = parse_override(override)
        if key == "synthesizer":
            raise UserError("got --set synthesizer=…; use --synthesizer")
        function, dot, option = key.partition(".")
        if dot and function in OPTIONS:
            options.setdefault(function, {})[option] = value
        elif key in _TRAINING:
            changes[key] = value
        elif key in _model_fields():
            check_value(key, value, SynthesizerConfig.__annotations__[key])
            model[key] = value
        elif task is None or key not in option_types(task):
            groups = ("training", "model", "function", *(() if task is None else (f"task {task.name}",)))
            hint = did_you_mean(key, [each.key for each in list_settings() if each.group.startswith(groups)])
            raise UserError(f"got unknown setting {key!r}{hint} (`synthesizer settings` lists all)")
    given = {name: value for name, value in training.items() if value is not None}
    if both := given.keys() & changes.keys():
        raise UserError(f"got {', '.join(sorted(both))} as a flag and with --set; give one of them")
    changes |= given
    # A new end of training replaces all of the preset's.
    if changes.keys() & {"max_steps", "minutes"}:
        changes = {"max_steps": -1, "minutes": None, **changes}
    settings = Settings(
        synthesizer=start.synthesizer if start and synthesizer is None else parse_synthesizer(synthesizer or ""),
        preset=preset,
        training=TrainingOptions(**{**values["training"], **changes}),
        model={**(values["model"] if start is None else start.model), **model},
        synthesizer_options=options,
        overrides=list(overrides),
    )
    config = settings.config.to_dict()
    if start is not None:
        there = start.config.to_dict()
        # First the fields that can be set by name: others may follow from them, as d_kv from num_heads.
        for name in sorted(config, key=lambda name: name not in settings.model):
            if name not in _WITHOUT_WEIGHTS and config[name] != there.get(name):
                raise UserError(
                    f"got {name}={config[name]!r}, but the run to start from has {there.get(name)!r}; only "
                    f"{', '.join(_WITHOUT_WEIGHTS)} can change"
                )
    return settings


def _read_preset(name: str) -> dict[str, Any]:
    """The groups of a preset, on top of those of the preset that it `extends`."""
    values: dict[str, Any] = yaml.safe_load((_PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))
    if (parent := values.pop("extends", None)) is None:
        return values
    return {group: {**own, **values.get(group, {})} for group, own in _read_preset(parent).items()}


def build_config(settings: Settings, **changes: Any) -> SynthesizerConfig:
    """A copy of the model's configuration with `changes`, which follow from the data."""
    config = copy.deepcopy(settings.config)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def list_settings(preset: str = "tiny") -> list[Setting]:
    """Every key of `--set`, in the groups "training", "model", "function NAME" and "task NAME"; values of a preset."""
    used = read_settings(synthesizer="vanilla", preset=preset)
    groups: list[tuple[str, str, Any, Iterable[str], Any]] = [
        ("training", "", TrainingOptions, _TRAINING, used.training),
        ("model", "", SynthesizerConfig, _model_fields(), used.config),
    ]
    for name, kind in OPTIONS.items():
        own = default_options(name) | used.synthesizer_options.get(name, {})
        groups.append((f"function {name}", f"{name}.", kind, own, SimpleNamespace(**own)))
    for task in map(get_task, known_tasks()):
        groups.append((f"task {task.name}", "", task, option_types(task), task))
    return [
        Setting(prefix + name, getattr(values, name, None), meanings.get(name, ""), group)
        for group, prefix, kind, names, values in groups
        for meanings in [_meanings(kind)]
        for name in names
    ]


def _meanings(kind: Any) -> dict[str, str]:
    """What a class says of each field or argument: in its metadata, or in its docstring or that of a base.

    There a line is `name: text`, or `name, name: text`.
    """
    docs = (inspect.cleandoc(base.__doc__ or "") for base in reversed(kind.__mro__))
    found = {
        name: " ".join(text.split()) for names, text in chain(*map(_FIELD.findall, docs)) for name in names.split(", ")
    }
    own = getattr(kind, "__dataclass_fields__", {})
    return found | {name: each.metadata["help"] for name, each in own.items() if "help" in each.metadata}


def read_task_options(
    task: type[Task], overrides: Sequence[str], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The options of a task: those in `given` that are not None, and those in `overrides`."""
    options = {name: value for name, value in (given or {}).items() if value is not None}
    types = option_types(task)
    for key, value in (parse_override(override, types) for override in overrides):
        if key in types:
            if key in options:
                raise UserError(f"got {key} twice; give it once")
            options[key] = value
        elif key in FORMER_OPTIONS:
            raise UserError(f"got {key}, an option of older versions that has no effect any more; leave it out")
    return options


def read_function_options(overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options by function, from `function.option=value`; raises UserError for other keys."""
    options: dict[str, dict[str, Any]] = {}
    for key, value in map(parse_override, overrides):
        function, dot, option = key.partition(".")
        if not dot or function not in OPTIONS:
            raise UserError(f"got --set {key}; expected an option of a function, such as factorized_random.rank=8")
        options.setdefault(function, {})[option] = value
    return options


def load_yaml(text: str) -> Any:
    """The value of a YAML document without aliases: with them a few bytes can become gigabytes."""
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
        raise yaml.YAMLError("got an alias, *name; expected the value itself")
    return yaml.safe_load(text)


def parse_synthesizer(text: str) -> str | list[str] | dict[str, Any]:
    """A name, or YAML for a list or {encoder: …, decoder: …}."""
    return _read_yaml(text) if text.lstrip().startswith(("[", "{")) else text


def parse_override(override: str, types: Mapping[str, Any] = MappingProxyType({})) -> tuple[str, Any]:
    """Key and value of `key=value`; the value is YAML, or the text itself for keys whose type is a text."""
    key, equals, text = map(str.strip, override.partition("="))
    if not equals or not key:
        raise UserError(f"got --set {override!r}; expected key=value")
    # YAML would read no, the suffix of Norwegian files, as false, #1 as a comment, and * as an alias.
    is_text = types.get(key) is str or (key in types and text.startswith(("#", "*")))
    return key, text if is_text and not text.startswith(_QUOTES) else _read_yaml(text)


@cache
def _model_fields() -> list[str]:
    """The configuration's own fields that can be set."""
    hidden = {
        *("is_encoder_decoder", "is_decoder", "synthesizer", "synthesizer_options", "use_cache", "type_vocab_size"),
        *_TOKENS,
    }
    own = SynthesizerConfig.__annotations__
    return [entry.name for entry in fields(SynthesizerConfig) if entry.name in own and entry.name not in hidden]


def _read_yaml(text: str) -> Any:
    try:
        value = load_yaml(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"got {text!r}; expected a YAML value: {one_line(error)}") from None
    # YAML 1.1 reads 1:30 as a number to the base 60, and 1e-3 as a string.
    if isinstance(value, int | float) and ":" in text:
        return text
    if isinstance(value, str) and not text.startswith(_QUOTES):
        with suppress(ValueError):
            return float(value)
    return value
