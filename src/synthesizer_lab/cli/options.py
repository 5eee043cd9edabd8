"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from ..tasks import known_tasks

if TYPE_CHECKING:
    from ..tasks.base import Task


def number(text: str, least: float | None = None, most: int = 2**31 - 1) -> Any:
    """An option for a number, with its help text, which leaves out the technical limit `most` of a whole one."""

    def check(value: float | None) -> float | None:
        if isinstance(value, int) and value > most:
            raise BadParameter(f"got {value}; expected at most {most}")
        return value

    return Option(help=text, metavar="N", min=least, callback=check)


_DATA = "Folder with files of the splits train and valid, or for most tasks hub:OWNER/NAME. [default: example data]"
_PRESETS = (
    "Size and training settings: demo, tiny, small, base, t5-tiny, t5-small, t5-base; for a GPU small-gpu, base-gpu, "
    "t5-small-gpu, t5-base-gpu. [default: tiny]"
)
_SET = "Change a setting; `synthesizer settings` lists them. Can be repeated."
_TEXTS = "How to handle texts longer than the model's maximum"

TaskName = Annotated[str, Argument(metavar="TASK", help=f"The task: {', '.join(known_tasks())}.")]
Run = Annotated[Path, Argument(metavar="RUN", help="Folder of a trained run.")]
Data = Annotated[Path | None, Option(metavar="PATH", help=_DATA)]
RunData = Annotated[Path | None, Option(metavar="PATH", help="The data. [default: the data of the run]")]
Source = Annotated[str | None, Option(help="Source language, the suffix of its files (translation only).")]
Target = Annotated[str | None, Option(help="Target language, the suffix of its files (translation only).")]
Preset = Annotated[str | None, Option(help=_PRESETS)]
Minutes = Annotated[float | None, number("Stop after this many minutes of training, validation not counted.")]
Steps = Annotated[int | None, number("Stop after this many updates. [default: the preset's]")]
Set = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help=_SET)]
SkipBadLines = Annotated[bool, Option("--skip-bad-lines", help="Skip malformed lines of the data, and count them.")]
Device = Annotated[str | None, Option(help="cpu, cuda or another PyTorch device. [default: the accelerator, or cpu]")]
_THREADS = "Threads on a CPU; 1 on a busy machine. [default: one per core, or OMP_NUM_THREADS]"
Threads = Annotated[int | None, number(_THREADS, 1, 1024)]
Bf16 = Annotated[bool, Option("--bf16", help="Use bfloat16 autocast; weights and optimizer stay in float32.")]
Bf16Weights = Annotated[bool, Option("--bf16", help="Use bfloat16, for weights too.")]
Int8 = Annotated[bool, Option("--int8", help="Multiply large matrices in int8 (CPU only): faster, less exact.")]
Sharding = Annotated[
    Literal["none", "fsdp"] | None,
    Option(help="fsdp: several processes share the model. [default: as `accelerate launch` says, or none]"),
]
TorchCompile = Annotated[bool, Option("--torch-compile", help="Compile the model; the start takes a minute longer.")]
Json = Annotated[bool, Option("--json", help="Print the results as one JSON object.")]

NumBeams = Annotated[int | None, number("Number of beams; 1 is greedy search. [default: the task's]", 1)]
LengthPenalty = Annotated[float | None, number("Divide log-probabilities by length^penalty. [default: the task's]")]
MinNewTokens = Annotated[int | None, number("Minimum number of generated tokens. [default: 0]", 0)]
MaxNewTokens = Annotated[int | None, number("Maximum number of generated tokens. [default: the task's]", 1)]
NoRepeatNgramSize = Annotated[int | None, number("No n-gram of this size is generated twice. [default: off]", 0)]
GENERATION = ("num_beams", "length_penalty", "min_new_tokens", "max_new_tokens", "no_repeat_ngram_size")

OnLong = Annotated[
    Literal["error", "truncate", "drop"] | None,
    Option(help=f"{_TEXTS}; drop leaves them out of training and validation. [default: error]"),
]
OnLongInput = Annotated[Literal["error", "truncate"] | None, Option(help=f"{_TEXTS}. [default: error]")]
Truncate = Annotated[bool, Option("--truncate", help="Short for --on-long truncate.")]


def choose_on_long(on_long: str | None, truncate: bool) -> Any:
    """The value of --on-long, for which --truncate is a short form; None if neither was given."""
    if truncate and on_long not in (None, "truncate"):
        raise BadParameter(f"got --truncate and --on-long {on_long}; give one of them")
    return "truncate" if truncate else on_long


def given(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Those of `options` with one of `names` that were given."""
    return {name: options[name] for name in names if options[name] is not None and options[name] is not False}


def choose_task(
    name: str, data: Path | None, overrides: Sequence[str], flags: Mapping[str, Any]
) -> tuple[Task[Any, Any], Path]:
    """The task with its options, and its data; `data` None means the task's own example data.

    Args:
        overrides: the values of `--set`.
        flags: options of the task that have a flag of their own.
    """
    from ..tasks import example_data, get_task
    from ..training.settings import read_task_options

    task = get_task(name)
    options = read_task_options(task, overrides, flags)
    if data is None:
        data, defaults = example_data(name) or (None, {})
        options = {**defaults, **options}
    if data is None:
        raise BadParameter("--data is missing")
    return task.from_options(options), data
