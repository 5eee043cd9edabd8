"""synthesizer convert MODEL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from . import options as opt
from .console import say, set_up_libraries

_SYNTHESIZER = "A function or mixture for every layer, as of `train`; with --calibrate random or dense."
_CALIBRATE = "Set the new parameters from this text: for a run its data, else a file with an input per line."
_TASK = "Make the result a run of this task, which `evaluate` and `train --from` take; for a MODEL that is no run."
_BUDGET = (
    "Replace this share of the heads, 0 … 1, those that cost least; by stack: {encoder: 0.75, decoder: 0.5}. "
    "[default: all]"
)


def convert(
    model: Annotated[str, Argument(metavar="MODEL", help="Folder of a run or a saved model, or a name on the hub.")],
    synthesizer: Annotated[str, Option(help=_SYNTHESIZER)],
    output: Annotated[Path, Option(help="Folder to write the model to.")],
    task: Annotated[str | None, Option(help=_TASK)] = None,
    data: Annotated[Path | None, Option(metavar="PATH", help="The data of this run, as of `train`.")] = None,
    calibrate: Annotated[Path | None, Option(metavar="TEXT", help=_CALIBRATE)] = None,
    source: opt.Source = None,
    target: opt.Target = None,
    budget: Annotated[str | None, Option(metavar="SHARE", help=_BUDGET)] = None,
    distill_steps: Annotated[
        int, opt.number("Then train the new parameters alone for so many updates, each layer for itself.", 0)
    ] = 0,
    max_length: Annotated[int | None, opt.number("Longest sequence of the new model. [default: MODEL's]", 2)] = None,
    examples: Annotated[int, opt.number("Number of examples of the text to read.", 1)] = 1000,
    batch_tokens: Annotated[int, opt.number("Tokens in a batch of the text.", 1)] = 2048,
    overrides: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="An option of a function (factorized_random.rank=8) or of --task."),
    ] = None,
    seed: Annotated[int, opt.number("Seed of new parameters.", 0, 2**32 - 1)] = 0,
    device: opt.Device = None,
    threads: opt.Threads = None,
) -> None:
    """Give a pretrained model synthesized attention.

    Writes the model, its tokenizer, and a report of what replacing each head costs.
    """
    from huggingface_hub.utils import logging
    from rich.console import Console

    from ..heads.run import Conversion, convert_to
    from ..heads.text import CalibrationText
    from ..tasks import get_task
    from ..training.settings import parse_synthesizer, read_function_options, read_task_options

    set_up_libraries(threads)
    # Of a name that is not on the hub, one line is enough.
    logging.set_verbosity_error()
    text = None
    if calibrate is not None:
        text = CalibrationText(calibrate, examples, batch_tokens)
    chosen: dict[str, Any] = opt.given(locals(), "max_length", "data")
    overrides = overrides or []
    if task is not None:
        kind = get_task(task)
        mine = [override for override in overrides if override.partition("=")[0].strip() in kind.option_types()]
        chosen["task"] = kind.from_options(read_task_options(kind, mine, {"source": source, "target": target}))
        overrides = [override for override in overrides if override not in mine]
    if budget is not None:
        chosen["budget"] = _read_budget(budget)
    how = Conversion(
        synthesizer=parse_synthesizer(synthesizer),
        synthesizer_options=read_function_options(overrides) or None,
        text=text,
        distill_steps=distill_steps,
        seed=seed,
        **chosen,
    )
    report = convert_to(model, output, how, device=device, report=say)
    Console(highlight=False, markup=False).print(report.table())
    say(f"the model is in {output}")


def _read_budget(text: str) -> Any:
    """A number, or a mapping of numbers by stack."""
    from synthetic_attention.validation import fits

    from ..training.settings import parse_synthesizer

    value: Any = parse_synthesizer(text)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if not fits(value, float | dict[str, float]):
        raise BadParameter(f"got --budget {text}; expected a share such as 0.5, or {{encoder: 0.75, decoder: 0.5}}")
    return value
