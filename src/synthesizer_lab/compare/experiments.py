"""Run the experiments of docs/results.md, or continue them, and write their tables.

    python -m synthesizer_lab.compare.experiments --data FOLDER --output runs [NAME …] [--jobs 2]

The experiments, their commands and the published figures are in benchmarks/experiments.yaml. OUTPUT/results.md has the
tables of all finished comparisons beside the published figures; OUTPUT/NAME.log has the output of the commands.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .results import markdown_table, notes
from .rows import parse_rows

EXPERIMENTS = Path("benchmarks/experiments.yaml")
_ROWS = "--synthesizers"
# How to run the commands of experiments.yaml with this Python; other programs are run as they are written.
_PROGRAMS = {"synthesizer": [sys.executable, "-m", "synthesizer_lab"], "python": [sys.executable]}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An entry of experiments.yaml; the comparison is in the folder `name` of the output."""

    name: str
    title: str
    commands: Sequence[str]
    about: str = ""
    after: Sequence[str] = ()
    pairs: Sequence[Sequence[str | Mapping[str, str]]] = ()
    published: Mapping[str, Any] = field(default_factory=dict)

    def words(self, data: str, runs: str) -> list[list[str]]:
        """The words of each command."""
        return [[word.format(data=data, runs=runs) for word in shlex.split(command)] for command in self.commands]

    def rows(self) -> list[str]:
        """The rows of its comparisons, in the order of the commands."""
        listed = (words[words.index(_ROWS) + 1] for words in self.words("", "") if _ROWS in words)
        return list(dict.fromkeys(row.label for text in listed for row in parse_rows([text])))


def read_experiments(path: Path = EXPERIMENTS) -> dict[str, Experiment]:
    """The experiments by name, in the order of the file; an experiment follows only experiments above it."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: Experiment(name=name, **values) for name, values in entries.items()}


def with_requirements(experiments: Mapping[str, Experiment], names: Sequence[str]) -> list[Experiment]:
    """The named experiments and those they follow, in the order of the file; all experiments if there are no names."""
    wanted = set(names or experiments)
    for name in reversed(list(experiments)):
        if name in wanted:
            wanted.update(experiments[name].after)
    return [experiment for name, experiment in experiments.items() if name in wanted]


def run(
    queue: Sequence[Experiment], data: Path, output: Path, jobs: int = 1, shown: Sequence[Experiment] = ()
) -> dict[str, str]:
    """Run experiments, `jobs` at a time, and write the tables of `shown` after each; returns reasons of failures.

    Experiments that follow a failed one are skipped.
    """
    output.mkdir(parents=True, exist_ok=True)
    futures: dict[str, Future[str]] = {}
    pool = ThreadPoolExecutor(jobs)
    try:
        # Started in this order, so a worker only waits for experiments that others already run.
        for experiment in queue:
            before = {name: futures[name] for name in experiment.after}
            futures[experiment.name] = pool.submit(_run_one, experiment, data, output, jobs, before)
        names = {future: name for name, future in futures.items()}
        for future in as_completed(names):
            print(f"{names[future]}: {future.result() or 'done'}", flush=True)
            write_tables(output, shown)
        return {name: reason for name, future in futures.items() if (reason := future.result())}
    finally:
        # After Ctrl-C the commands, which received the signal too, save what they have.
        pool.shutdown(cancel_futures=True)


def _run_one(experiment: Experiment, data: Path, output: Path, jobs: int, before: Mapping[str, Future[str]]) -> str:
    """Run the commands of an experiment; returns the reason of a failure, or an empty text."""
    if failed := [name for name, future in before.items() if future.result()]:
        return f"skipped: it needs {', '.join(failed)}"
    environment = dict(os.environ)
    if jobs > 1:
        environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or jobs) // jobs))
    log = output / f"{experiment.name}.log"
    for program, *words in experiment.words(str(data), str(output)):
        print(f"$ {shlex.join([program, *words])}", flush=True)
        command = [*_PROGRAMS.get(program, [program]), *words]
        with log.open("ab") as stream:
            status = subprocess.run(command, stdout=stream, stderr=stream, env=environment).returncode
        if status:
            *_, last = ["no output", *log.read_text(encoding="utf-8", errors="replace").strip().splitlines()]
            return f"{last} (status {status}; {log})"
    return ""


def write_tables(output: Path, experiments: Sequence[Experiment]) -> None:
    """Write results.md: a section for each experiment that has results."""
    sections = (section(output, each) for each in experiments)
    partial = output / "results.md.partial"
    partial.write_text("\n".join(filter(None, sections)), encoding="utf-8")
    partial.replace(output / "results.md")


def section(output: Path, experiment: Experiment) -> str:
    """The section of an experiment as Markdown; empty if no run is finished."""
    path = output / experiment.name / "results.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": []}
    if not any(run["status"] == "finished" for run in results["runs"]):
        return ""
    listed = "".join(f"- {note}\n" for note in notes(results)).replace(str(output.absolute()), "runs")
    body = f"{markdown_table(results, experiment.published.get('columns'))}\n{listed}"
    commands = "\n".join(shlex.join(words) for words in experiment.words("DATA", "runs"))
    source = f"Published: {experiment.published['source']}." if experiment.published else ""
    parts = [f"## {experiment.title}", experiment.about, f"```console\n{commands}\n```", body, source]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments, run, write the tables; returns the status."""
    experiments = read_experiments()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(experiments)} (default: all)")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the data sets")
    parser.add_argument("--output", type=Path, default=Path("runs"), help="folder of runs and tables (default: runs)")
    parser.add_argument("--jobs", type=int, default=1, help="experiments at a time; they share the cores")
    options = parser.parse_args(arguments)
    if unknown := {*options.names} - {*experiments}:
        parser.error(f"got unknown experiment {', '.join(unknown)}; expected some of: {', '.join(experiments)}")
    if options.jobs < 1:
        parser.error(f"got --jobs {options.jobs}; expected at least 1")
    # An empty path means the current folder.
    if not options.data.parts or not options.data.is_dir():
        parser.error(f"got --data {options.data}; expected the folder with the data sets")
    # Tables of earlier calls stay, whichever experiments run now.
    queue, shown = with_requirements(experiments, options.names), list(experiments.values())
    failures = run(queue, options.data, options.output, options.jobs, shown)
    print(f"tables: {options.output / 'results.md'}")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
