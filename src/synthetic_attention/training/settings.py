"""What a training run can be told: a preset, and `key=value` on top of it."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from huggingface_hub.errors import StrictDataclassError

from ..data.examples import Long
from ..models import SynthesizerConfig
from ..self_attention import known as known_functions
from ..tasks import UserError
from ..tasks.base import Task
from ..tasks.options import option_types
from .failures import one_line
from .hyperparameters import TrainingArguments
from .overrides import parse_override, parse_synthesizer, read_task_options

__all__ = [
    "Settings",
    "TrainingArguments",
    "build_config",
    "known_presets",
    "parse_synthesizer",
    "read_settings",
    "read_task_options",
]

_PRESETS = files(__package__) / "presets"
# What ends training.
_BUDGET = {"steps", "minutes"}
# What of a model may differ from that of the run it starts from: nothing that a weight depends on.
_FREE = ("attention_dropout_rate", "classifier_pooling", "dropout_rate", "fused_loss", "label_smoothing")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides the result of a run, but the data: what `run.yaml` keeps."""

    synthesizer: str | list[str] | dict[str, Any]
    preset: str
    seed: int
    training: TrainingArguments
    model: dict[str, Any] = field(default_factory=dict)
    synthesizer_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise UserError(f"got seed {self.seed!r}; expected 0 … 2³² − 1")
        if not isinstance(self.model, dict):
            raise UserError(f"got model={self.model!r}; expected fields and their values")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as YAML keeps them."""
        # Through JSON: YAML would mark a list that appears twice with an anchor.
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """The settings that `to_dict` wrote.

        Raises:
            UserError: they are not, or not any more.
        """
        try:
            return cls(**{**values, "training": TrainingArguments(**values["training"])})
        except (KeyError, TypeError) as error:
            raise UserError(f"got settings that cannot be read: {one_line(error)}") from error

    def with_budget(self, steps: int | None, minutes: float | None) -> Settings:
        """The same with another end: whichever of the two is given replaces the old end, be it steps or minutes."""
        if steps is None and minutes is None:
            return self
        return replace(self, training=replace(self.training, steps=steps, minutes=minutes))


def known_presets() -> list[str]:
    """The names of the presets."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _PRESETS.iterdir() if entry.name.endswith(".yaml"))


def read_settings(
    *,
    synthesizer: str | None,
    preset: str,
    seed: int,
    overrides: Sequence[str] = (),
    long: Long | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    dtype: str | None = None,
    compile_model: bool | None = None,
    task: type[Task[Any, Any]] | None = None,
    start: Settings | None = None,
) -> Settings:
    """A preset, with `key=value` overrides on top.

    A key is a field of `SynthesizerConfig`, a field of `TrainingArguments`, or an option of a synthesizing function,
    "random.std"; options of `task` are kept among the overrides, and left to `read_task_options`. Values are read as
    YAML; `synthesizer` as `parse_synthesizer` does. Where steps or minutes are given, by an override or an argument,
    they replace the preset's end; where both are, whichever comes first ends training.

    Args:
        synthesizer: None with `start` alone.
        start: the settings of a run whose model is taken over; the preset says how to train then, and nothing else.
            What may be set of the model is what no weight depends on: dropout, label smoothing, how a classifier pools,
            and whether the loss is fused.

    Raises:
        UserError: an unknown preset or key (the known are listed), a value that cannot be, or a model that is not
            that of `start`.
    """
    if preset not in known_presets():
        raise UserError(f"got unknown preset {preset!r}; expected one of: {', '.join(known_presets())}")
    values = yaml.safe_load((_PRESETS / f"{preset}.yaml").read_text(encoding="utf-8"))
    training = values["training"]
    own = frozenset[str]() if task is None else frozenset(option_types(task))
    before = values["model"].pop("synthesizer_options", {}) if start is None else start.synthesizer_options
    model, changes, options = _sort_overrides(overrides, copy.deepcopy(before), own)
    if start is not None:
        _refuse_another_model(start, synthesizer, model, options)
        chosen = start.synthesizer
    else:
        assert synthesizer is not None
        chosen = parse_synthesizer(synthesizer)
    given = {"steps": steps, "minutes": minutes, "dtype": dtype, "compile": compile_model, "long_sentences": long}
    for name, value in given.items():
        if value is None:
            continue
        if name in changes:
            flag = {"truncate": "--truncate", "drop": "--drop-long"}.get(str(value), f"--{name}")
            raise UserError(f"got both {flag} and --set {name}=…; give one of them")
        changes[name] = value
    if changes.keys() & _BUDGET:
        training = {name: value for name, value in training.items() if name not in _BUDGET}
    settings = Settings(
        synthesizer=chosen,
        preset=preset,
        seed=seed,
        training=TrainingArguments(**{**training, **changes}),
        model={**(values["model"] if start is None else start.model), **model},
        synthesizer_options=options,
        overrides=list(overrides),
    )
    build_config(settings)
    return settings


def _refuse_another_model(
    start: Settings, synthesizer: str | None, model: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    if synthesizer is not None and parse_synthesizer(synthesizer) != start.synthesizer:
        raise UserError(f"got synthesizer {synthesizer}, but the run to start from has {start.synthesizer!r}")
    if options != start.synthesizer_options:
        raise UserError(
            f"got synthesizer_options={options!r}, but the run to start from has {start.synthesizer_options!r}; leave "
            "out options of functions"
        )
    for name, value in model.items():
        there = start.model.get(name, getattr(SynthesizerConfig, name))
        if name not in _FREE and value != there:
            raise UserError(
                f"got {name}={value!r}, but the run to start from has {there!r}; of its model only {', '.join(_FREE)} "
                "can be set"
            )


def _sort_overrides(
    overrides: Sequence[str], options: dict[str, Any], of_the_task: frozenset[str]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Fields of the model and of training that `overrides` set, and the options of functions after them."""
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for override in overrides:
        key, value = parse_override(override)
        if key == "synthesizer":
            raise UserError("got --set synthesizer=…; use --synthesizer")
        if key in of_the_task:
            continue
        owner, dot, option = key.partition(".")
        if dot:
            options.setdefault(_function(owner, key), {})[option] = value
        elif key == "synthesizer_options":
            _check_options(value)
            options = value
        elif key in _training_keys():
            training[key] = value
        elif key in _model_keys():
            model[key] = value
        else:
            raise UserError(
                f"got unknown setting {key!r}; expected an option of a function (random.std), or one of: "
                f"{', '.join(sorted({*_model_keys(), *_training_keys(), *of_the_task} - {'synthesizer'}))}"
            )
    return model, training, options


def build_config(settings: Settings, **changes: Any) -> SynthesizerConfig:
    """The model's configuration, with `changes` to fields.

    Raises:
        UserError: what the configuration refuses, on one line.
    """
    options = settings.synthesizer_options or None
    _check_types(settings)
    try:
        return SynthesizerConfig(
            **{**settings.model, **changes}, synthesizer=settings.synthesizer, synthesizer_options=options
        )
    # The strict dataclass of huggingface_hub reports a wrong type with exceptions of its own.
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise UserError(one_line(error)) from error


def _check_types(settings: Settings) -> None:
    """The configuration computes with its fields before it checks their types, and then says neither name nor type."""
    for name, value in settings.model.items():
        if name not in _model_keys():
            raise UserError(f"got unknown field {name!r}; expected some of: {', '.join(sorted(_model_keys()))}")
        default = getattr(SynthesizerConfig, name)
        # The fields without a default number are numbers that follow from others.
        kind = int if default is None else type(default)
        fits = isinstance(value, kind) or (kind is float and isinstance(value, int)) or (value is default is None)
        if not fits or isinstance(value, bool) != (kind is bool):
            raise UserError(f"got {name}={value!r}; expected {kind.__name__}")
        if kind is float and not math.isfinite(value):
            raise UserError(f"got {name}={value}; expected a finite number")
        # Of one token only </s> is left, and nothing can be generated.
        if name == "max_position_embeddings" and value < 2:
            raise UserError(f"got {name}={value}; expected at least 2: a token and the end")
    _check_options(settings.synthesizer_options)


def _check_options(options: Any) -> None:
    if not isinstance(options, dict) or not all(isinstance(entry, dict) for entry in options.values()):
        raise UserError(f"got synthesizer_options={options!r}; expected options by function, {{random: {{std: 0.1}}}}")


@cache
def _model_keys() -> frozenset[str]:
    """Fields of the configuration that are ours, not those that transformers gives to all."""
    return frozenset(SynthesizerConfig.__annotations__) - {
        *("model_type", "keys_to_ignore_at_inference", "attribute_map", "is_encoder_decoder"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
    }


@cache
def _training_keys() -> frozenset[str]:
    return frozenset(entry.name for entry in fields(TrainingArguments))


def _function(owner: str, key: str) -> str:
    known = [*known_functions(), "mixture"]
    if owner not in known:
        raise UserError(f"got unknown function {owner!r} in {key!r}; expected one of: {', '.join(known)}")
    return owner
