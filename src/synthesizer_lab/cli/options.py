"""The options of the commands, made by `option` and the functions below it.

An option has the type, the default and the help of a flag. A parameter of a command whose type is a dataclass stands
for its fields: options that several commands share, under the docstring as heading in the help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import typer
from typer import BadParameter

from ..errors import UserError
from ..tasks import known_tasks
from ..training.options import TrainingOptions
from .console import say

if TYPE_CHECKING:
    from ..tasks.base import Task


def option(text: str, default: Any = None, **about: Any) -> Any:
    """A flag with its help text; the default ... means that it must be given.

    Args:
        about: `name` of the flag, if it is not that of the field; `metavar`; the `least` value, and the `most`, a
            technical limit that the help leaves out.
    """
    return field(default=default, metadata={"help": text, **about})


def setting(key: str, **about: Any) -> Any:
    """A flag for an option of training, which has its meaning; the help says its default, or what is `otherwise` so."""
    entry = TrainingOptions.__dataclass_fields__[key]
    text, is_flag = entry.metadata["help"], entry.default is False
    shown = "" if is_flag or entry.default is None else f" [default: {about.pop('otherwise', entry.default)}]"
    return option(f"{text[0].upper()}{text[1:]}.{shown}", False if is_flag else None, **about)


def with_default(kind: type, name: str, default: Any) -> Any:
    """A flag of another dataclass with another default."""
    return field(default=default, metadata=kind.__dataclass_fields__[name].metadata)  # type: ignore[attr-defined]


def argument(metavar: str, text: str, default: Any = ...) -> Any:
    """A value without a flag."""
    return field(default=default, metadata={"help": text, "argument": metavar})


def parameters(owner: Any, heading: str | None = None) -> Iterator[Parameter]:
    """The parameters of a command, as typer reads them; those that are dataclasses stand for their fields."""
    for name, hint, entry in _entries(owner):
        if is_dataclass(hint):
            yield from parameters(hint, (hint.__doc__ or "").rstrip("."))
            continue
        about, limits = entry.metadata, dict[str, Any]()
        if hint is not bool and {hint, *get_args(hint)} & {int, float}:
            limits = {"metavar": "N", "callback": _limit(about.get("least"), about.get("most", 2**31 - 1))}
        if "argument" in about:
            made = typer.Argument(entry.default, metavar=about["argument"], help=about["help"])
        else:
            flag = about.get("name") or f"--{name.replace('_', '-')}"
            made = typer.Option(
                entry.default,
                flag,
                rich_help_panel=heading,
                **{"help": about["help"], "metavar": about.get("metavar"), **limits},
            )
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=made, annotation=hint)


def call(owner: Any, values: Mapping[str, Any]) -> Any:
    """Call a command, or make a dataclass, with the values of its `parameters`."""
    entries = _entries(owner)
    return owner(**{name: call(hint, values) if is_dataclass(hint) else values[name] for name, hint, _ in entries})


def _entries(owner: Any) -> Iterator[tuple[str, Any, Any]]:
    """Names, types and fields of a dataclass, or of a function whose defaults are such fields."""
    hints = get_type_hints(owner)
    found = fields(owner) if is_dataclass(owner) else signature(owner).parameters.values()
    for entry in found:
        yield entry.name, hints[entry.name], entry if is_dataclass(owner) else entry.default


def _limit(least: int | None, most: int) -> Any:
    def check(value: float | None) -> float | None:
        if value is not None and least is not None and value < least:
            raise BadParameter(f"got {value}; expected at least {least}")
        if isinstance(value, int) and value > most:
            raise BadParameter(f"got {value}; expected at most {most}")
        return value

    return check


def whole_numbers(flag: str, text: str, least: int = 1) -> list[int]:
    """The value of a flag that takes whole numbers."""
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        raise UserError(f"got {flag} {text!r}; expected whole numbers from {least} on, separated by commas")
    return numbers


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None and value is not False}


@dataclass(kw_only=True)
class TaskData:
    """Task and data."""

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

    def task_options(self) -> dict[str, Any]:
        """The options of the task that have a flag."""
        return given(source=self.source, target=self.target, skip_bad_lines=self.skip_bad_lines)

    def read(self) -> tuple[Task, Path]:
        """The task with its options, and its data; by default the task's own example data."""
        from ..tasks import example_data, get_task, make_task
        from ..training.settings import read_task_options

        data = self.data
        options = read_task_options(get_task(self.task), self.overrides or [], self.task_options())
        if data is None:
            data, defaults = example_data(self.task) or (None, {})
            if data is None:
                raise BadParameter("--data is missing")
            say(f"no --data: the example data of {self.task}")
            options = {**defaults, **options}
        return make_task(self.task, options), data


@dataclass(kw_only=True)
class LongInputs:
    """Long inputs."""

    on_long: Literal["error", "truncate"] | None = option(
        "How to handle texts longer than the model's maximum. [default: error]"
    )
    truncate: bool = option("Short for --on-long truncate.", False)

    def settings(self) -> dict[str, Any]:
        """The options that were given, with `on_long` in the place of `truncate`."""
        if self.truncate and self.on_long not in (None, "truncate"):
            raise BadParameter(f"got --truncate and --on-long {self.on_long}; give one of them")
        on_long = "truncate" if self.truncate else self.on_long
        return given(**{**vars(self), "truncate": None, "on_long": on_long})


@dataclass(kw_only=True)
class Training(LongInputs):
    """Training."""

    on_long: Literal["error", "truncate", "drop"] | None = setting("on_long")  # type: ignore[assignment]
    preset: str | None = option(
        "Size and training settings: demo, tiny, small, base, llama-tiny, t5-tiny, t5-small, t5-base; for a GPU "
        "small-gpu, base-gpu, t5-small-gpu, t5-base-gpu. [default: tiny]"
    )
    minutes: float | None = setting("minutes")
    max_steps: int | None = setting("max_steps", name="--steps", otherwise="the preset's")
    bf16: bool = setting("bf16")
    torch_compile: bool = setting("torch_compile")


@dataclass(kw_only=True)
class Generation:
    """Generation."""

    num_beams: int | None = option("Number of beams; 1 is greedy search. [default: the task's]", least=1)
    length_penalty: float | None = option("Divide log-probabilities by length^penalty. [default: the task's]")
    min_new_tokens: int | None = option("Minimum number of generated tokens. [default: 0]", least=0)
    max_new_tokens: int | None = option(
        "Maximum number of generated tokens. Encoder-decoders also stop at 2 × source + 32. [default: the task's]",
        least=1,
    )
    no_repeat_ngram_size: int | None = option("No n-gram of this size is generated twice. [default: off]", least=0)


@dataclass(kw_only=True)
class Device:
    """Device."""

    device: str | None = option("cpu, cuda or another PyTorch device. [default: the accelerator, or cpu]")
    threads: int | None = option(
        "Threads on a CPU; 1 on a busy machine. [default: one per core, or OMP_NUM_THREADS]", least=1, most=1024
    )


@dataclass(kw_only=True)
class Inference(Device):
    """Device and precision."""

    bf16: bool = option("Use bfloat16, for weights too.", False)
