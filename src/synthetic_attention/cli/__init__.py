"""The command `synthesizer`. Commands only parse: what they do is imported when they run, so that --help is quick."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from ..errors import UserError
from . import benchmark, compare, evaluate, generate, inspect, train

__all__ = ["app", "main"]

# typer brings its own copy of click or uses that of the system, by its version: this is the one it raises.
_ClickException: type[Any] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

app = typer.Typer(
    name="synthesizer",
    help="Train and use Transformers whose attention weights are synthesized.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _InterruptedError(Exception):
    """Ctrl-C."""


class _ReaderGoneError(Exception):
    """Standard output is closed (| head)."""


def _unseen_by_typer(command: Callable[..., None]) -> Callable[..., None]:
    """Pass on what typer would make an exit code of, without a word."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            raise _InterruptedError from None
        except BrokenPipeError:
            raise _ReaderGoneError from None

    return call


app.command("train")(_unseen_by_typer(train.train))
app.command("evaluate")(_unseen_by_typer(evaluate.evaluate))
app.command("compare")(_unseen_by_typer(compare.compare))
app.command("generate")(_unseen_by_typer(generate.generate))
app.command("inspect")(_unseen_by_typer(inspect.inspect))

benchmarks = typer.Typer(
    name="benchmark",
    help="Measure speed and memory beside PyTorch's and Hugging Face's own, in one process.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
benchmarks.command("attention")(_unseen_by_typer(benchmark.attention))
benchmarks.command("encoder")(_unseen_by_typer(benchmark.encoder))
benchmarks.command("generation")(_unseen_by_typer(benchmark.generation))
benchmarks.command("memory")(_unseen_by_typer(benchmark.memory))
app.add_typer(benchmarks)


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Options of the command without a subcommand; they act through their callbacks."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 for an error of the user's, 2 for wrong usage, 130 after Ctrl-C."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
        # What is still buffered may meet a closed pipe: here, where it can be told apart, and not at exit.
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except _ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            # Its message is the help.
            typer.echo(error.format_message(), err=True)
            return 2
        return _fail(f"{error.format_message()} (synthesizer --help lists commands, COMMAND --help their options)", 2)
    except (_ReaderGoneError, BrokenPipeError):
        # Python would try to flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (UserError, OSError) as error:
        return _fail(str(error), 1)
    except (_InterruptedError, KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    typer.secho(f"Error: {line}", fg=typer.colors.RED, err=True)
    return code
