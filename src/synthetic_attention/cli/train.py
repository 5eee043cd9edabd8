"""synthesizer train TASK."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..tasks.examples import Long

__all__ = ["train"]

_SYNTHESIZER, _PRESET, _SEED = "random+vanilla", "tiny", 1


def train(
    task: Annotated[str, typer.Argument(help="What to learn: translation.")],
    output: Annotated[Path, typer.Option(help="The folder of the run, made anew.")],
    data: Annotated[Path | None, typer.Option(help="Folder with {train,valid}.{language} files.")] = None,
    source: Annotated[str | None, typer.Option(help="Source language: the suffix of its files.")] = None,
    target: Annotated[str | None, typer.Option(help="Target language: the suffix of its files.")] = None,
    synthesizer: Annotated[
        str | None,
        typer.Option(
            help="Functions joined by +; YAML for a list (one per layer) or {encoder: …, decoder: …}. "
            f"[default: {_SYNTHESIZER}]"
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"Size of the model and how to train. [default: {_PRESET}]")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Stop after minutes of training, validation excluded; with --steps, at the first to come."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after updates. [default: the preset's]")] = None,
    seed: Annotated[int | None, typer.Option(help=f"Of weights, batches and dropout. [default: {_SEED}]")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of model, training or function (random.std=0.1)."),
    ] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut sentences over the maximum length.")] = False,
    drop_long: Annotated[bool, typer.Option("--drop-long", help="Leave out pairs over the maximum length.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run at --output.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run at --output.")] = False,
) -> None:
    """Train a model. Ctrl-C stops with a checkpoint, from which --resume goes on."""
    if resume and overwrite:
        raise typer.BadParameter("--resume and --overwrite exclude each other")
    if truncate and drop_long:
        raise typer.BadParameter("--truncate and --drop-long exclude each other")
    from ..tasks import get_task

    task_class = get_task(task)
    long: Long | None = "truncate" if truncate else "drop" if drop_long else None

    from ..report.progress import ProgressReport
    from ..report.results import describe_training
    from ..training.session import resume_run, start_run
    from ..training.settings import parse_synthesizer, read_settings
    from .quiet import quiet_libraries, say

    quiet_libraries()
    common: dict[str, Any] = {"report": say, "watch": ProgressReport}
    if resume:
        given = {
            "task": task,
            "source": source,
            "target": target,
            "synthesizer": None if synthesizer is None else parse_synthesizer(synthesizer),
            "preset": preset,
            "seed": seed,
            "overrides": overrides or None,
            "long_sentences": long,
        }
        expected = {name: value for name, value in given.items() if value is not None}
        outcome = resume_run(output, expected=expected, data=data, steps=steps, minutes=minutes, **common)
    else:
        for name, value in {"--data": data, "--source": source, "--target": target}.items():
            if value is None:
                raise typer.BadParameter(f"{name} is missing")
        # For the type checker, which does not follow the loop.
        assert data is not None
        assert source is not None
        assert target is not None
        settings = read_settings(
            synthesizer=_SYNTHESIZER if synthesizer is None else synthesizer,
            preset=_PRESET if preset is None else preset,
            seed=_SEED if seed is None else seed,
            overrides=overrides or [],
            long=long,
            steps=steps,
            minutes=minutes,
        )
        outcome = start_run(
            task=task_class(source, target),
            data=data,
            settings=settings,
            output=output,
            overwrite=overwrite,
            **common,
        )
    say(describe_training(outcome.metrics))
    if outcome.signal is not None:
        say(f"stopped; to go on: synthesizer train {task} --output {shlex.quote(str(output))} --resume")
        raise typer.Exit(128 + outcome.signal)
    say(f"the best model is in {output}")
