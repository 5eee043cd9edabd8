"""Run the experiments of docs/results.md, or continue them.

    python -m synthesizer_lab.compare.experiments --data FOLDER --output runs [NAME …] [--jobs 2]

The experiments, their commands and the published figures are in benchmarks/experiments.yaml. OUTPUT/NAME/table.md has
the table of a comparison.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .results import Pair
from .rows import parse_rows

EXPERIMENTS = Path("benchmarks/experiments.yaml")
_ROWS = "--synthesizers"
# How to run the commands of experiments.yaml with this Python; other programs are run as they are written.
_PROGRAMS = {"synthesizer": [sys.executable, "-m", "synthesizer_lab"], "python": [sys.executable]}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An entry of experiments.yaml."""

    commands: Sequence[str]
    title: str = ""
    about: str = ""
    after: Sequence[str] = ()
    pairs: Sequence[Pair] = ()
    published: Mapping[str, Any] = field(default_factory=dict)

    def words(self, data: str, runs: str) -> list[list[str]]:
        """The words of each command."""
        return [[word.format(data=data, runs=runs) for word in shlex.split(command)] for command in self.commands]

    def rows(self) -> list[str]:
        """The rows of its comparisons, in the order of the commands."""
        listed = (words[words.index(_ROWS) + 1] for words in self.words("", "") if _ROWS in words)
        return list(dict.fromkeys(row.label for text in listed for row in parse_rows([text])))

    def named_pairs(self) -> dict[str, Pair]:
        """Its pairs of rows by "row − row", or "row − experiment: row"."""
        names = (
            " − ".join(row if isinstance(row, str) else ": ".join(*row.items()) for row in pair) for pair in self.pairs
        )
        return dict(zip(names, self.pairs, strict=True))


def read_experiments(path: Path = EXPERIMENTS) -> dict[str, Experiment]:
    """The experiments by name, in the order of the file; an experiment follows only experiments above it."""
    return {name: Experiment(**values) for name, values in yaml.safe_load(path.read_text(encoding="utf-8")).items()}


def _call(words: list[str], jobs: int) -> bool:
    """Run a command; whether it succeeds."""
    program, *rest = words
    if program == "synthesizer" and rest[0] == "compare":
        rest += ["--jobs", str(jobs)]
    print(f"$ {shlex.join([program, *rest])}", flush=True)
    process = subprocess.Popen([*_PROGRAMS.get(program, [program]), *rest])
    try:
        return process.wait() == 0
    except KeyboardInterrupt:
        # It stops after a checkpoint, or at a second Ctrl-C.
        process.wait()
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and run; returns the status."""
    experiments = read_experiments()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(experiments)} (default: all)")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the data sets")
    parser.add_argument("--output", default="runs", help="folder of runs and tables (default: runs)")
    parser.add_argument("--jobs", type=int, default=1, help="runs of a comparison at a time; they share the cores")
    options = parser.parse_args(arguments)
    if unknown := {*options.names} - {*experiments}:
        parser.error(f"got unknown experiment {', '.join(unknown)}; expected some of: {', '.join(experiments)}")
    if not options.data.is_dir():
        parser.error(f"got --data {options.data}; expected the folder with the data sets")
    # What they start from, too; an experiment follows only experiments above it.
    wanted, failed = {*(options.names or experiments)}, set[str]()
    for name in reversed(experiments):
        if name in wanted:
            wanted.update(experiments[name].after)
    for name, experiment in experiments.items():
        if name in wanted:
            commands = experiment.words(str(options.data), options.output)
            if failed.intersection(experiment.after) or not all(_call(words, options.jobs) for words in commands):
                failed.add(name)
            print(f"{name}: {'failed' if name in failed else 'done'}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
