"""The settings of a run: a preset, and `key=value` on top of it."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from huggingface_hub.errors import StrictDataclassError

from ..errors import UserError
from ..models import SynthesizerConfig
from ..synthesizers import option_types as function_options
from ..tasks import get_task, known_tasks
from ..tasks.base import Task
from ..tasks.options import option_types
from ..validation import check_value, did_you_mean
from .arguments import SynthesizerTrainingArguments, argument_types
from .failures import one_line

__all__ = [
    "Setting",
    "Settings",
    "build_config",
    "known_presets",
    "list_settings",
    "parse_override",
    "parse_synthesizer",
    "read_settings",
    "read_task_options",
]

_PRESETS = files(__package__) / "presets"
# What ends training: a new end replaces all of the preset's.
_BUDGET = {"max_steps": -1, "minutes": None}
# The fields of a model that a run with `--from` can change: no weight depends on them.
_WITHOUT_WEIGHTS = ("attention_dropout_rate", "classifier_pooling", "dropout_rate", "fused_loss")


@dataclass(frozen=True)
class Setting:
    """A key of `--set`, its default and its meaning."""

    key: str
    default: Any
    meaning: str
    group: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides the result of a run, except its task and data; run.yaml keeps it.

    `overrides` are the `key=value` texts on top of the preset.
    """

    synthesizer: str | list[str] | dict[str, Any]
    preset: str
    training: SynthesizerTrainingArguments
    model: dict[str, Any] = field(default_factory=dict)
    synthesizer_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)

    @property
    def seed(self) -> int:
        """The seed of weights, batches and dropout."""
        return self.training.seed

    def to_dict(self) -> dict[str, Any]:
        """Plain values for YAML."""
        # Through JSON: YAML would mark a list that appears twice with an anchor.
        return json.loads(json.dumps({**vars(self), "training": self.training.to_dict()}))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """The settings that `to_dict` wrote."""
        check_value("model", values.get("model", {}), dict[str, Any])
        try:
            return cls(**{**values, "training": SynthesizerTrainingArguments(**values["training"])})
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(f"the settings cannot be read: {one_line(error)}") from error

    def with_budget(self, max_steps: int | None, minutes: float | None) -> Settings:
        """The same settings with another end: if either value is given, it replaces the old steps and minutes."""
        if max_steps is None and minutes is None:
            return self
        end: dict[str, Any] = {"max_steps": -1 if max_steps is None else max_steps, "minutes": minutes}
        return replace(self, training=replace(self.training, **end))


def known_presets() -> list[str]:
    """The names of the presets."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _PRESETS.iterdir() if entry.name.endswith(".yaml"))


def read_settings(
    *,
    synthesizer: str | None = None,
    preset: str,
    overrides: Sequence[str] = (),
    task: type[Task[Any, Any]] | None = None,
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
    values = yaml.safe_load((_PRESETS / f"{preset}.yaml").read_text(encoding="utf-8"))
    options = values["model"].pop("synthesizer_options", {}) if start is None else start.synthesizer_options
    task_keys = () if task is None else option_types(task)
    model, changes, options = _sort_overrides(overrides, copy.deepcopy(options), task_keys)
    training = {name: value for name, value in training.items() if value is not None}
    if both := training.keys() & changes.keys():
        raise UserError(f"got {', '.join(sorted(both))} as a flag and with --set; give one of them")
    changes |= training
    if changes.keys() & _BUDGET.keys():
        changes = {**_BUDGET, **changes}
    settings = Settings(
        synthesizer=start.synthesizer if start and synthesizer is None else parse_synthesizer(synthesizer or ""),
        preset=preset,
        training=SynthesizerTrainingArguments(**{**values["training"], **changes}),
        model={**(values["model"] if start is None else start.model), **model},
        synthesizer_options=options,
        overrides=list(overrides),
    )
    build_config(settings)
    if start is not None:
        _check_same_model(start, settings)
    return settings


def build_config(settings: Settings, **changes: Any) -> SynthesizerConfig:
    """The model's configuration, with `changes` to fields."""
    for name in settings.model:
        if name not in _model_fields():
            raise UserError(f"got unknown field {name!r} of the model{did_you_mean(name, _model_fields())}")
    if settings.model.get("max_position_embeddings") == 1:
        raise UserError("got max_position_embeddings=1; expected at least 2: a token and the end")
    check_value("synthesizer_options", settings.synthesizer_options, dict[str, dict[str, Any]])
    try:
        return SynthesizerConfig(
            **{**settings.model, **changes},
            synthesizer=settings.synthesizer,
            synthesizer_options=settings.synthesizer_options or None,
        )
    # The strict dataclass of huggingface_hub reports a wrong type with exceptions of its own.
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise UserError(one_line(error)) from error


def list_settings() -> list[Setting]:
    """Every key of `--set`, in the groups "training", "model", "function NAME" and "task NAME"."""
    found = [
        Setting(entry.name, entry.default, entry.metadata["help"], "training")
        for entry in fields(SynthesizerTrainingArguments)
        if entry.name in argument_types()
    ]
    meanings = _documented(SynthesizerConfig)
    found += [
        Setting(name, getattr(SynthesizerConfig, name), meanings.get(name, ""), "model") for name in _model_fields()
    ]
    groups: list[tuple[str, str, Any]] = [
        (f"function {name}", f"{name}.", kind) for name, kind in function_options().items()
    ]
    groups += [(f"task {name}", "", get_task(name)) for name in known_tasks()]
    for group, prefix, kind in groups:
        meanings = {}
        for cls in reversed(kind.__mro__):
            meanings |= _documented(cls)
        for entry in fields(kind):
            default = None if entry.default is MISSING else entry.default
            found.append(Setting(prefix + entry.name, default, meanings.get(entry.name, ""), group))
    return found


def read_task_options(
    task: type[Task[Any, Any]], overrides: Sequence[str], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The options of a task: those in `given` that are not None, and those in `overrides`."""
    options = {name: value for name, value in (given or {}).items() if value is not None}
    types = option_types(task)
    for override in overrides:
        key, text = _split_override(override)
        if key not in types:
            continue
        if key in options:
            raise UserError(f"got {key} twice; give it once")
        # A text stays as it is: YAML would read no, the suffix of Norwegian files, as false, and #1 as a comment.
        is_text = types[key] is str or text.strip().startswith("#")
        options[key] = text.strip() if is_text and not _is_quoted(text) else _read_yaml(text)
    return options


def parse_synthesizer(text: str) -> str | list[str] | dict[str, Any]:
    """A name, or YAML for a list or {encoder: …, decoder: …}."""
    return _read_yaml(text) if text.lstrip().startswith(("[", "{")) else text


def parse_override(override: str) -> tuple[str, Any]:
    """Key and value of `key=value`; the value is YAML."""
    key, text = _split_override(override)
    return key, _read_yaml(text)


def _sort_overrides(
    overrides: Sequence[str], options: dict[str, Any], task_keys: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Split `overrides` into fields of the model, training arguments, and options of functions (added to `options`)."""
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for override in overrides:
        key, value = parse_override(override)
        if key == "synthesizer":
            raise UserError("got --set synthesizer=…; use --synthesizer")
        owner, dot, option = key.partition(".")
        if key in task_keys:
            continue
        if dot and owner in function_options():
            options.setdefault(owner, {})[option] = value
        elif dot:
            hint = did_you_mean(owner, function_options()) or f"; expected one of: {', '.join(function_options())}"
            raise UserError(f"got unknown function {owner!r} in {key!r}{hint}")
        elif key == "synthesizer_options":
            check_value(key, value, dict[str, dict[str, Any]])
            options = value
        elif key in argument_types():
            training[key] = value
        elif key in _model_fields():
            check_value(key, value, SynthesizerConfig.__annotations__[key])
            model[key] = value
        else:
            hint = did_you_mean(key, [*argument_types(), *_model_fields(), *task_keys])
            raise UserError(f"got unknown setting {key!r}{hint} (`synthesizer settings` lists all)")
    return model, training, options


def _check_same_model(start: Settings, settings: Settings) -> None:
    there, here = build_config(start).to_dict(), build_config(settings).to_dict()
    # First the fields that can be set by name: others may follow from them, as d_kv from num_heads.
    for name, value in sorted(here.items(), key=lambda entry: entry[0] not in settings.model):
        if name not in _WITHOUT_WEIGHTS and value != there.get(name):
            raise UserError(
                f"got {name}={value!r}, but the run to start from has {there.get(name)!r}; only "
                f"{', '.join(_WITHOUT_WEIGHTS)} can change"
            )


@cache
def _model_fields() -> list[str]:
    """The configuration's own fields that can be set."""
    hidden = {
        *("model_type", "keys_to_ignore_at_inference", "attribute_map", "is_encoder_decoder", "is_decoder"),
        *("synthesizer", "synthesizer_options", "use_cache", "type_vocab_size", "pad_token_id", "bos_token_id"),
        *("eos_token_id", "decoder_start_token_id"),
    }
    return [name for name in SynthesizerConfig.__annotations__ if name not in hidden]


def _documented(cls: type) -> dict[str, str]:
    """The meanings of fields in a docstring: entries "name: text" of its sections."""
    text = inspect.cleandoc(cls.__doc__ or "")
    entries = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(meaning.split()) for names, meaning in entries for name in names.split(", ")}


def _split_override(override: str) -> tuple[str, str]:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"got --set {override!r}; expected key=value")
    return key.strip(), value


def _is_quoted(text: str) -> bool:
    return text.strip()[:1] in ("'", '"')


def _read_yaml(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"got {text!r}; expected a YAML value: {one_line(error)}") from None
    # YAML 1.1 reads 1:30 as a number to the base 60.
    if isinstance(value, int | float) and ":" in text:
        return text
    if not isinstance(value, str) or _is_quoted(text):
        return value
    # YAML 1.1 reads 1e-3 as a string.
    try:
        return float(value)
    except ValueError:
        return value
