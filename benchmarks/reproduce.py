"""Run the experiments of docs/results.md again, or go on with them, and write their tables.

    python benchmarks/reproduce.py --data FOLDER --output runs [NAME …] [--jobs 2]

The experiments, the commands they consist of and the published figures are in experiments.yaml beside this file.
Stopped and called again, everything goes on where it was. OUTPUT/results.md has the tables of what is finished, beside
the published figures; OUTPUT/NAME.log what the commands said.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from synthetic_attention.compare.table import reading_notes

EXPERIMENTS = Path(__file__).with_name("experiments.yaml")
console = Console(highlight=False)
# Seconds in which a training has saved a checkpoint.
GRACE = 120


@dataclass(frozen=True, kw_only=True)
class Published:
    """Figures to show beside ours: by column, then by row."""

    source: str
    columns: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An entry of experiments.yaml."""

    name: str
    title: str
    commands: Sequence[str]
    results: Sequence[str] = ()
    after: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    about: str = ""
    published: Published | None = field(default=None)

    def words(self, data: str, runs: str) -> Iterator[list[str]]:
        """The words of each command, the first one included: synthesizer, or python and a script of this folder."""
        for command in self.commands:
            words = [word.format(data=data, runs=runs) for word in shlex.split(command)]
            is_script = words[0].endswith(".py")
            yield ["python", f"benchmarks/{words[0]}", *words[1:]] if is_script else ["synthesizer", *words]


def read_experiments(path: Path = EXPERIMENTS) -> dict[str, Experiment]:
    """The experiments by name, in their order.

    Raises:
        ValueError: an entry has an unknown field, or comes after one that is not before it.
    """
    known = {entry.name for entry in fields(Experiment)} - {"name"}
    experiments: dict[str, Experiment] = {}
    for name, values in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        if unknown := values.keys() - known:
            raise ValueError(f"{path.name}, {name}: got {', '.join(sorted(unknown))}; expected some of {sorted(known)}")
        if missing := [other for other in values.get("after", ()) if other not in experiments]:
            raise ValueError(f"{path.name}, {name}: comes after {', '.join(missing)}, which is not above it")
        published = values.pop("published", None)
        experiments[name] = Experiment(name=name, published=Published(**published) if published else None, **values)
    return experiments


def closure(experiments: Mapping[str, Experiment], names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names and those they come after, in the order of the file; all if there is no name."""
    wanted = set(names or experiments)
    for name in reversed(list(experiments)):
        if name in wanted:
            wanted.update(experiments[name].after)
    return [experiment for name, experiment in experiments.items() if name in wanted]


class Runner:
    """Does experiments, some at a time, and says how they end.

    `shown` are those whose tables are written, by default the same ones. After `minutes` what runs is stopped: a
    training saves a checkpoint, and the same call goes on.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        data: Path,
        output: Path,
        jobs: int,
        shown: Sequence[Experiment] | None = None,
        minutes: float | None = None,
    ) -> None:
        self.deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self.experiments, self.data, self.output, self.jobs = experiments, data, output, jobs
        self.shown = experiments if shown is None else shown
        self.ended = {experiment.name: threading.Event() for experiment in experiments}
        self.failed: dict[str, str] = {}
        self.stopped = False
        self._lock = threading.Lock()
        self._environment = dict(os.environ)
        if jobs > 1:
            threads = max(1, (os.cpu_count() or jobs) // jobs)
            self._environment["OMP_NUM_THREADS"] = str(threads)

    def run(self) -> None:
        """Do all. One that fails is noted, and those that come after it are left out."""
        self.output.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(self._do, experiment) for experiment in self.experiments]
            try:
                for future in futures:
                    future.result()
            except KeyboardInterrupt:
                # The commands got the signal too, and save what they have; nothing else is begun.
                self.stopped = True
                raise

    def _do(self, experiment: Experiment) -> None:
        for name in experiment.after:
            # Those were begun before, so somebody is at work on them.
            self.ended[name].wait()
        started, reason = time.monotonic(), "it was interrupted"
        try:
            lacking = [name for name in experiment.after if name in self.failed]
            reason = f"it needs {', '.join(lacking)}" if lacking else self._commands(experiment)
        except OSError as error:
            reason = str(error)
        finally:
            if reason:
                # Before those that wait for it are let go.
                self.failed[experiment.name] = reason
            self.ended[experiment.name].set()
        with self._lock:
            minutes = (time.monotonic() - started) / 60
            if self.stopped:
                return
            if reason:
                console.print(f"[red]{experiment.name} failed[/] after {minutes:.1f} minutes: {escape(reason)}")
            else:
                console.print(f"[green]{experiment.name} done[/], {minutes:.1f} minutes")
            write_tables(self.output, self.shown)

    def _commands(self, experiment: Experiment) -> str:
        """Why it failed; nothing if it did not."""
        for name, source in experiment.links.items():
            _link(self.output / name, (self.data / source).resolve())
        log = self.output / f"{experiment.name}.log"
        for words in experiment.words(str(self.data), str(self.output)):
            if self.stopped or self.is_over():
                return f"{'stopped' if self.stopped else 'the minutes are over'}; the same command goes on"
            console.print(Text(f"$ {shlex.join(words)}", style="cyan"), soft_wrap=True)
            with log.open("ab") as stream:
                script = [str(EXPERIMENTS.with_name(Path(words.pop(1)).name))] if words[0] == "python" else []
                command = [sys.executable, *(script or ["-m", "synthetic_attention.cli"]), *words[1:]]
                status = self.call(command, stream)
            if status is None:
                return "the minutes are over; the same command goes on"
            if status:
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                return f"{lines[-1] if lines else 'no output'} (status {status}; {log})"
        return ""

    def is_over(self) -> bool:
        """Whether the minutes that there were have passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def call(self, command: Sequence[str], stream: IO[bytes]) -> int | None:
        """Run a command; its status, or None if the minutes ended first."""
        with subprocess.Popen(command, stdout=stream, stderr=stream, env=self._environment) as process:
            try:
                return process.wait(None if self.deadline is None else max(0.0, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                # A training saves and ends; what hears nothing else ends at once, and leaves whole files.
                process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
            return None


def _link(link: Path, target: Path) -> None:
    """Let `link` lead to `target`; one that does is left alone, as another experiment may be reading it."""
    if link.is_symlink() and link.readlink() == target:
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=link.parent) as folder:
        (Path(folder) / link.name).symlink_to(target)
        (Path(folder) / link.name).replace(link)


def write_tables(output: Path, experiments: Sequence[Experiment]) -> None:
    """Write results.md, of what is there."""
    sections = [section for experiment in experiments if (section := tables(output, experiment))]
    output.mkdir(parents=True, exist_ok=True)
    partial = output / "results.md.partial"
    partial.write_text("\n".join(sections), encoding="utf-8")
    partial.replace(output / "results.md")


def tables(output: Path, experiment: Experiment) -> str:
    """The section of an experiment, as Markdown; empty where nothing of it is finished."""
    parts = []
    for name in experiment.results:
        path = output / name / "results.json"
        if path.exists():
            results = json.loads(path.read_text(encoding="utf-8"))
            if "markdown" in results:
                # Of a script, which makes its own table.
                parts.append(results["markdown"])
            elif any(run["status"] == "finished" for run in results["runs"]):
                parts.append(
                    f"{table(results, experiment.published)}\n{circumstances(results)}{notes(results, output)}"
                )
    if not parts:
        return ""
    links = [f"mkdir -p runs/{parent}" for parent in dict.fromkeys(Path(name).parent for name in experiment.links)]
    links += [f"ln -sr DATA/{source} runs/{name}" for name, source in experiment.links.items()]
    commands = "\n".join([*links, *(shlex.join(words) for words in experiment.words("DATA", "runs"))])
    source = f"Published: {experiment.published.source}.\n\n" if experiment.published else ""
    about = f"{experiment.about.strip()}\n\n" if experiment.about else ""
    body = "\n".join(parts)
    return f"## {experiment.title}\n\n{about}```console\n{commands}\n```\n\n{body}\n{source}"


def table(results: Mapping[str, Any], published: Published | None) -> str:
    """Rows with what was measured, and the published figures beside it."""
    columns = published.columns if published else {}
    # What people are shown of a score; in the order of the task.
    labels = results["score_labels"]
    shown = [
        (split, score)
        for split in results["tests"]
        for score in labels
        if any(
            score in {**row["tests"].get(split, {}), **absent(results, row["row"], split)} for row in results["rows"]
        )
    ]
    several = len(results["tests"]) > 1
    heads = [labels[score] + (f", {split}" if several else "") for split, score in shown]
    # Where another score selects, the loss of what it selects may be of any step.
    ends = results["selected_by"] != "loss" and all("last" in row for row in results["rows"])
    losses = ["validation loss", *(["at the end"] if ends else [])]
    header = ["synthesizer", "seeds", "parameters", *losses, *heads, *(f"*{name}*" for name in columns)]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for row in results["rows"]:
        if not row["finished"]:
            continue
        lines.append(
            [
                f"`{row['row']}`",
                str(len(row["finished"])),
                f"{row['parameters'] / 1e6:.2f} M",
                _mean(row["validation"].get("loss"), 3),
                *([_mean(row["last"].get("loss"), 3)] if ends else []),
                *(
                    _mean(row["tests"].get(split, {}).get(score), 2, absent(results, row["row"], split).get(score))
                    for split, score in shown
                ),
                *(_figure(figures.get(row["row"])) for figures in columns.values()),
            ]
        )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def circumstances(results: Mapping[str, Any]) -> str:
    """Budget, machines, versions and dates of the runs, on a line."""
    finished = [run for run in results["runs"] if run["status"] == "finished"]
    budget = results["budget"]
    each = " or ".join(
        f"{budget[name]:,} {unit}" for name, unit in (("steps", "steps"), ("minutes", "minutes")) if budget[name]
    )
    machines = " and ".join(dict.fromkeys(_machine(run["versions"]) for run in finished))
    days = sorted({run["date"][:10] for run in finished})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    minutes = [run["metrics"]["minutes"] for run in finished]
    return (
        f"Preset {results['settings']['preset']}, {each} a run ({min(minutes):.0f}–{max(minutes):.0f} minutes); "
        f"{machines}; {when}.\n"
    )


def _machine(versions: Mapping[str, Any]) -> str:
    named = [f"{name} {versions[name]}" for name in ("python", "torch", "transformers") if name in versions]
    return ", ".join([*([versions["device"]] if "device" in versions else []), *named])


def absent(results: Mapping[str, Any], row: str, split: str) -> dict[str, str]:
    """The scores of a row that could not be computed, and why."""
    tests = [run["tests"][split] for run in results["runs"] if run["row"] == row and split in run.get("tests", {})]
    return {score: reason for test in tests for score, reason in test.get("not_computed", {}).items()}


def notes(results: Mapping[str, Any], output: Path) -> str:
    """What one has to know to read the table, a line each; `output` is called as in the commands."""
    return "".join(f"- {line}\n" for line in reading_notes(results)).replace(str(output.absolute()), "runs")


def _mean(score: Mapping[str, Any] | None, digits: int, reason: str | None = None) -> str:
    if score is None:
        return reason or "–"
    return f"{score['mean']:.{digits}f}" + (f" ± {score['sd']:.{digits}f}" if score["sd"] is not None else "")


def _figure(value: float | None) -> str:
    return "" if value is None else f"*{value:.2f}*"


def show(experiments: Sequence[Experiment], output: Path) -> None:
    """What there is, and how much of it is done."""
    overview = Table(box=None, pad_edge=False)
    for name in ("name", "title", "runs done"):
        overview.add_column(name)
    for experiment in experiments:
        overview.add_row(experiment.name, experiment.title, " ".join(map(_done, _folders(output, experiment))))
    console.print(overview)


def _folders(output: Path, experiment: Experiment) -> list[Path]:
    return [output / name / "results.json" for name in experiment.results]


def _done(path: Path) -> str:
    if not path.exists():
        return "0"
    results = json.loads(path.read_text(encoding="utf-8"))
    if "markdown" in results:
        return "all"
    runs = results["runs"]
    return f"{sum(run['status'] == 'finished' for run in runs)}/{len(runs)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, write; the status."""
    experiments = read_experiments()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(experiments)} (default: all)")
    parser.add_argument("--data", type=Path, help="the folder with the data sets")
    parser.add_argument("--output", type=Path, default=Path("runs"), help="where runs and tables go (default: runs)")
    parser.add_argument("--jobs", type=int, default=1, help="experiments at a time; the cores are divided among them")
    parser.add_argument(
        "--minutes",
        type=float,
        help="stop after so long in all; the same command goes on later (what is no comparison begins its model anew)",
    )
    parser.add_argument("--list", action="store_true", help="show the experiments and what is done of them")
    parser.add_argument("--tables", action="store_true", help="only write the tables of what is finished")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in experiments]:
        parser.error(f"got unknown experiment {', '.join(unknown)}; expected some of: {', '.join(experiments)}")
    if options.jobs < 1:
        parser.error(f"got --jobs {options.jobs}; expected at least 1")
    if options.minutes is not None and options.minutes <= 0:
        parser.error(f"got --minutes {options.minutes:g}; expected more than 0")
    chosen = closure(experiments, options.names)
    if options.list:
        show(chosen, options.output)
        return 0
    if options.tables:
        write_tables(options.output, chosen)
        return 0
    # An empty path would be the folder that we are in.
    if options.data is None or not options.data.parts or not options.data.is_dir():
        parser.error(f"got --data {options.data}; expected the folder with the data sets")
    # What was done before stays in the tables, whatever is done now.
    shown = list(experiments.values())
    runner = Runner(chosen, options.data, options.output, options.jobs, shown, options.minutes)
    runner.run()
    console.print(f"tables: {options.output / 'results.md'}")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
