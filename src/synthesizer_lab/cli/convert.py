"""synthesizer convert MODEL."""

from __future__ import annotations

from pathlib import Path

from .console import say, set_up_libraries
from .options import Device, TaskData, argument, given, option, with_default


def convert(
    *,
    model: str = argument("MODEL", "Folder of a run or a saved model, or a name on the hub."),
    synthesizer: str = option(
        "A function, mixture or groups for every layer, as of `train`; with --calibrate random, factorized_random or "
        "dense.",
        ...,
    ),
    output: Path = option("Folder to write the model to.", ...),
    task: str | None = option(
        "Make the result a run of this task, which `evaluate` and `train --from` take; for a MODEL that is no run."
    ),
    data: Path | None = option("The data of this run, as of `train`.", metavar="PATH"),
    calibrate: Path | None = option(
        "Set the new parameters from this text: for a run its data, else a file with an input per line.", metavar="TEXT"
    ),
    source: str | None = with_default(TaskData, "source", None),
    target: str | None = with_default(TaskData, "target", None),
    budget: str | None = option(
        "Replace this share of the heads, 0 … 1, those that cost least; by stack: {encoder: 0.75, decoder: 0.5}. "
        "[default: all]",
        metavar="SHARE",
    ),
    distill_steps: int = option(
        "Then train the new parameters alone for so many updates, each layer for itself.", 0, least=0
    ),
    max_length: int | None = option("Longest sequence of the new model. [default: MODEL's]", least=2),
    examples: int = option("Number of examples of the text to read.", 1000, least=1),
    batch_tokens: int = option("Tokens in a batch of the text.", 2048, least=1),
    overrides: list[str] | None = option(
        "An option of a function (factorized_random.rank=8) or of --task.", name="--set", metavar="KEY=VALUE"
    ),
    seed: int = option("Seed of new parameters.", 0, least=0, most=2**32 - 1),
    place: Device,
) -> None:
    """Give a pretrained model synthesized attention.

    Writes the model, its tokenizer, and a report of what replacing each head costs.

    Example: synthesizer convert bert-base-uncased --synthesizer random+vanilla --output converted
    """
    from huggingface_hub.utils import logging
    from rich.console import Console

    from ..errors import UserError
    from ..heads.run import Conversion, convert_to, make_table
    from ..tasks import get_task, make_task, option_types
    from ..training.settings import parse_override, parse_synthesizer, read_function_options, read_task_options

    set_up_libraries(place.threads)
    # Of a name that is not on the hub, one line is enough.
    logging.set_verbosity_error()
    overrides, made, languages = overrides or [], None, given(source=source, target=target)
    if task is not None:
        kind = get_task(task)
        mine = [override for override in overrides if override.partition("=")[0].strip() in option_types(kind)]
        made = make_task(task, read_task_options(kind, mine, languages))
        overrides = [override for override in overrides if override not in mine]
    elif languages:
        raise UserError(f"got --{', --'.join(languages)}; expected them only with --task translation and --data")
    how = Conversion(
        synthesizer=parse_synthesizer(synthesizer),
        synthesizer_options=read_function_options(overrides) or None,
        text=calibrate,
        examples=examples,
        batch_tokens=batch_tokens,
        budget=1.0 if budget is None else parse_override(f"budget={budget}")[1],
        distill_steps=distill_steps,
        max_length=max_length,
        seed=seed,
        task=made,
        data=data,
    )
    report = convert_to(model, output, how, device=place.device, report=say)
    Console(highlight=False, markup=False).print(make_table(report))
    say(f"the model is in {output}")
