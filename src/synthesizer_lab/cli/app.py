"""The commands of `synthesizer`. Each imports its work only when it runs, so --help is fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from inspect import Signature
from typing import Any

import typer
from typer.core import TyperCommand

from ..errors import UserError
from . import benchmark, compare, convert, evaluate, export, generate, inspect, settings, train
from .options import call, parameters

# Some versions of typer contain a copy of click: this is the exception of the one in use.
_ClickException: type[Any] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

_LINE = 400

app = typer.Typer(
    name="synthesizer",
    help="Train and use Transformers with synthesized attention weights.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


benchmarks = typer.Typer(
    name="benchmark",
    help="Compare speed and memory with PyTorch and Hugging Face.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class _Help(TyperCommand):
    """A command whose help has the options in groups, and an example at the end."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[Any]] = {}
        for each in self.get_params(ctx):
            heading = "Options" if each.param_type_name == "option" else "Arguments"
            if (line := each.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(each, "rich_help_panel", None) or heading, []).append(line)
        for heading, lines in groups.items():
            with formatter.section(heading):
                formatter.write_dl(lines)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Example"):
            formatter.write(f"  {self.epilog}\n")


def _add(group: typer.Typer, function: Callable[..., None]) -> None:
    """Add a command; its docstring ends with an example."""
    text, _, example = (function.__doc__ or "").partition("Example: ")
    group.command(cls=_Help, help=text.strip(), epilog=example.strip())(_command(function))


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """The command as typer calls it. Reports errors of the user in one line; typer reports only wrong usage."""

    def run(**values: Any) -> None:
        try:
            call(function, values)
            # Writing what is buffered can find a closed pipe: report it here, not at exit.
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(_fail("interrupted", 130)) from None
        except (UserError, OSError) as error:
            raise typer.Exit(_fail(str(error), 1)) from None
        except ModuleNotFoundError as error:
            advice = "pip install 'synthetic-attention[train]', or '.[train]' in a clone"
            raise typer.Exit(_fail(f"{error.name} is missing; this command needs: {advice}", 1)) from None

    run.__name__ = function.__name__
    vars(run)["__signature__"] = Signature([*parameters(function)])
    return run


def _fail(message: str, code: int) -> int:
    """Print an error on one line of at most 400 characters: its beginning has the place, its end the way out."""
    line = f"Error: {' '.join(message.split())}"
    # File names and data can contain control characters, which a terminal would obey.
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
    if len(line) > _LINE:
        line = f"{line[: _LINE - 163]} … {line[-160:]}"
    typer.secho(line, fg=typer.colors.RED, err=True)
    return code


_COMMANDS: list[Callable[..., None]] = [train.train, evaluate.evaluate, generate.generate, compare.compare]
_COMMANDS += [inspect.inspect, convert.convert, export.export, settings.settings]
for _each in _COMMANDS:
    _add(app, _each)
for _each in (benchmark.attention, benchmark.encoder, benchmark.generation):
    _add(benchmarks, _each)
app.add_typer(benchmarks)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("synthetic-attention"))
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Options without a subcommand; their callbacks do the work."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0, 1 for a user's error, 2 for wrong usage, 130 after Ctrl-C."""
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except _ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            # The message is the help text.
            typer.echo(error.format_message(), err=True)
            return 2
        return _fail(f"{error.format_message()} (synthesizer --help lists commands, COMMAND --help their options)", 2)
    return code if isinstance(code, int) else 0
