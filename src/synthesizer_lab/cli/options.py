"""The options of the commands: dataclasses whose fields become the flags of `synthesizer`.

A field has the type, the default and the help of its flag. A field whose type is another dataclass stands for its
fields, options that several commands share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import typer
from typer import BadParameter

from ..tasks import known_tasks
from ..training.options import Sharding, TrainingOptions

if TYPE_CHECKING:
    from ..tasks.base import Task


def option(
    text: str,
    default: Any = None,
    *,
    name: str | None = None,
    least: float | None = None,
    most: int = 2**31 - 1,
    metavar: str | None = None,
) -> Any:
    """A flag with its help text, by default with the name of the field; `most` is a limit that the help leaves out."""
    return field(
        default=default, metadata={"help": text, "name": name, "least": least, "most": most, "metavar": metavar}
    )


def required(text: str, metavar: str | None = None) -> Any:
    """A flag that must be given."""
    return option(text, MISSING, metavar=metavar)


def setting(key: str, name: str | None = None) -> Any:
    """A flag for an option of training, which has its meaning; if it is not given, the preset decides."""
    entry = TrainingOptions.__dataclass_fields__[key]
    text, least, most = entry.metadata["help"], entry.metadata.get("least"), entry.metadata.get("below", 2**31) - 1
    default = False if entry.default is False else None
    return option(f"{text[0].upper()}{text[1:]}.", default, name=name, least=least, most=most)


def with_default(kind: type, name: str, default: Any) -> Any:
    """A flag of another dataclass with another default."""
    return field(default=default, metadata=kind.__dataclass_fields__[name].metadata)  # type: ignore[attr-defined]


def argument(metavar: str, text: str, default: Any = MISSING) -> Any:
    """A value without a flag."""
    return field(default=default, metadata={"help": text, "argument": metavar})


def parameters(kind: Any) -> Iterator[Parameter]:
    """The parameters of a command with the options of a dataclass, as typer reads them."""
    hints = get_type_hints(kind)
    for entry in fields(kind):
        hint, about = hints[entry.name], entry.metadata
        if is_dataclass(hint):
            yield from parameters(hint)
            continue
        default = ... if entry.default is MISSING else entry.default
        if "argument" in about:
            made = typer.Argument(default, metavar=about["argument"], help=about["help"])
        else:
            name = about["name"] or f"--{entry.name.replace('_', '-')}"
            kinds = {hint, *get_args(hint)}
            limits = {}
            if hint is not bool and kinds & {int, float}:
                limits = {"metavar": "N", "min": about["least"], "callback": _limit(about["most"])}
            made = typer.Option(default, name, **{"help": about["help"], "metavar": about["metavar"], **limits})
        yield Parameter(entry.name, Parameter.KEYWORD_ONLY, default=made, annotation=hint)


def _limit(most: int) -> Any:
    def check(value: float | None) -> float | None:
        if isinstance(value, int) and value > most:
            raise BadParameter(f"got {value}; expected at most {most}")
        return value

    return check


def make(kind: Any, values: Mapping[str, Any]) -> Any:
    """The dataclass with the values of `parameters`."""
    hints = get_type_hints(kind)
    names = {entry.name: hints[entry.name] for entry in fields(kind)}
    return kind(**{name: make(hint, values) if is_dataclass(hint) else values[name] for name, hint in names.items()})


def given(options: Any, *names: str) -> dict[str, Any]:
    """The options that were given, or those of `names`."""
    found = {name: getattr(options, name) for name in names or [entry.name for entry in fields(options)]}
    return {name: value for name, value in found.items() if value is not None and value is not False}


@dataclass(kw_only=True)
class TaskData:
    """A task and its data."""

    task: str = argument("TASK", f"The task: {', '.join(known_tasks())}.")
    data: Path | None = option(
        "Folder with files of the splits train and valid, or for most tasks hub:OWNER/NAME. [default: example data]",
        metavar="PATH",
    )
    source: str | None = option("Source language, the suffix of its files (translation only).")
    target: str | None = option("Target language, the suffix of its files (translation only).")
    skip_bad_lines: bool = option("Skip malformed lines of the data, and count them.", False)
    overrides: list[str] | None = option(
        "Change a setting; `synthesizer settings` lists them. Can be repeated.", name="--set", metavar="KEY=VALUE"
    )

    def read(self) -> tuple[Task[Any, Any], Path]:
        """The task with its options, and its data; by default the task's own example data."""
        from ..tasks import example_data, get_task
        from ..training.settings import read_task_options

        task, data = get_task(self.task), self.data
        options = read_task_options(task, self.overrides or [], given(self, "source", "target", "skip_bad_lines"))
        if data is None:
            data, defaults = example_data(self.task) or (None, {})
            options = {**defaults, **options}
        if data is None:
            raise BadParameter("--data is missing")
        return task.from_options(options), data


@dataclass(kw_only=True)
class Training:
    """How models are trained, whatever the preset says."""

    preset: str | None = option(
        "Size and training settings: demo, tiny, small, base, t5-tiny, t5-small, t5-base; for a GPU small-gpu, "
        "base-gpu, t5-small-gpu, t5-base-gpu. [default: tiny]"
    )
    minutes: float | None = setting("minutes")
    max_steps: int | None = setting("max_steps", "--steps")
    on_long: Literal["error", "truncate", "drop"] | None = setting("on_long")
    truncate: bool = option("Short for --on-long truncate.", False)
    bf16: bool = setting("bf16")
    torch_compile: bool = setting("torch_compile")

    def settings(self) -> dict[str, Any]:
        """The options of training that were given."""
        return given(self, "minutes", "max_steps", "bf16", "torch_compile") | _long(self)


@dataclass(kw_only=True)
class LongInputs:
    """Inputs over the maximum length."""

    on_long: Literal["error", "truncate"] | None = option(
        "How to handle texts longer than the model's maximum. [default: error]"
    )
    truncate: bool = option("Short for --on-long truncate.", False)

    def settings(self) -> dict[str, Any]:
        """`on_long` if it was given."""
        return _long(self)


def _long(options: Training | LongInputs) -> dict[str, Any]:
    if options.truncate and options.on_long not in (None, "truncate"):
        raise BadParameter(f"got --truncate and --on-long {options.on_long}; give one of them")
    return {"on_long": "truncate"} if options.truncate else given(options, "on_long")


@dataclass(kw_only=True)
class Generation:
    """How text is generated."""

    num_beams: int | None = option("Number of beams; 1 is greedy search. [default: the task's]", least=1)
    length_penalty: float | None = option("Divide log-probabilities by length^penalty. [default: the task's]")
    min_new_tokens: int | None = option("Minimum number of generated tokens. [default: 0]", least=0)
    max_new_tokens: int | None = option("Maximum number of generated tokens. [default: the task's]", least=1)
    no_repeat_ngram_size: int | None = option("No n-gram of this size is generated twice. [default: off]", least=0)


@dataclass(kw_only=True)
class Device:
    """Where a command computes."""

    device: str | None = option("cpu, cuda or another PyTorch device. [default: the accelerator, or cpu]")
    threads: int | None = option(
        "Threads on a CPU; 1 on a busy machine. [default: one per core, or OMP_NUM_THREADS]", least=1, most=1024
    )


@dataclass(kw_only=True)
class Inference:
    """How a trained model is computed."""

    place: Device
    bf16: bool = option("Use bfloat16, for weights too.", False)
    int8: bool = option("Multiply large matrices in int8 (CPU only): faster, less exact.", False)
    sharding: Sharding | None = option(
        "fsdp: several processes share the model. [default: as `accelerate launch` says, or none]"
    )

    def settings(self) -> dict[str, Any]:
        """The arguments of the functions that load a run."""
        from ..training.sharding import launched_sharding

        sharding = self.sharding or launched_sharding() or "none"
        return {"device": self.place.device, "bf16": self.bf16, "int8": self.int8, "sharding": sharding}
