"""Do the runs of a comparison, or go on with them."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..tasks import UserError
from ..training.device import choose_training_device
from ..training.evaluation import evaluate_run
from ..training.run_folder import RunFolder
from ..training.session import Report, Watch, resume_run, start_run
from ..training.settings import TrainingArguments
from ..training.summary import format_seconds
from .folder import ComparisonFolder
from .plan import Part, Plan, Scoring, Shared, make_plan
from .results import FAILED, FINISHED, PENDING, make_results
from .rows import Row
from .vocabulary import describe_tokenizer

__all__ = ["Ending", "compare"]

Entry = dict[str, Any]
Key = tuple[Row, int]
Render = Callable[[Mapping[str, Any]], str]
# What an evaluation says beside its scores and how text was generated.
_NOT_SCORES = {"examples", "truncated", "divided", "skipped", "seconds", "examples_per_second"}
_SIGNATURE = "_signature"
_METRICS = "metrics.json"
# What a comparison has that was begun before there was such a setting, by its names in comparison.yaml and run.yaml.
_DEFAULTS = {
    f"{prefix}training.{entry.name}": entry.default
    for entry in fields(TrainingArguments)
    for prefix in ("settings.", "")
}


@dataclass(frozen=True)
class Ending:
    """How a comparison ended: its results as results.json has them, and the signal that stopped it, if one did."""

    results: dict[str, Any]
    signal: int | None

    @property
    def failures(self) -> list[Entry]:
        """The entries of the runs that failed."""
        return [run for run in self.results["runs"] if run["status"] == FAILED]


def compare(
    *,
    shared: Shared,
    scoring: Scoring,
    rows: Sequence[Row],
    seeds: Sequence[int],
    output: Path,
    render: Render,
    device: str | None = None,
    report: Report = print,
    watch: Watch | None = None,
) -> Ending:
    """Train and score every row with every seed into the folder `output`, or go on with what is there.

    Runs that are complete are kept, one that was stopped goes on from its checkpoint. Rows and seeds of earlier calls
    stay in the results, and are scored on splits that are new. A run that fails is noted with the reason, and the
    others go on; the next call tries it again.

    Args:
        render: makes the content of table.md of the results.
        device, report, watch: as for `start_run`, for all runs.

    Raises:
        UserError: something cannot be used, or `output` was begun with other settings. Nothing has been written then.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("compare works in one process; start it without torchrun, or train the runs one by one")
    choose_training_device(device)
    folder = ComparisonFolder(output.resolve())
    with folder.locked():
        plan = make_plan(shared, scoring, folder.merge(rows, seeds))
        _refuse_others(folder, plan)
        folder.remove_partial()
        folder.write_record(plan.record(), {row.label: numbers for row, numbers in plan.seeds.items()})
        for line in plan.describe():
            report(line)
        work = _Work(folder, plan, render, device, report, watch)
        # By seed, so that a table with all rows is there early.
        signal = work.do([(row, seed) for seed in seeds for row in rows])
        return Ending(work.publish(), signal)


def _refuse_others(folder: ComparisonFolder, plan: Plan) -> None:
    record = folder.read_record()
    if record is not None and (found := _differences(plan.record(), _with_options(record["shared"], plan))):
        raise UserError(f"{folder.path} was begun with other settings; got {found}. Choose another --output")
    for row, seeds in plan.seeds.items():
        for seed in seeds:
            run = folder.run(row, seed)
            if not run.path.exists():
                continue
            source, info = plan.source(row, seed), run.read_info()
            expected = {**plan.run_settings(row, seed).to_dict(), **_start(None if source is None else source.record())}
            there = {**info["settings"], **_start(info.get("from"))}
            # They only say how the rest came about.
            if found := _differences({**expected, "overrides": None}, {**there, "overrides": None}):
                raise UserError(f"{run.path} is not a run of this comparison; expected {found}. Move it away")


def _with_options(begun: Mapping[str, Any], plan: Plan) -> Mapping[str, Any]:
    """What a comparison was begun with; options that its task has got since then count as their defaults."""
    task = type(plan.shared.task)
    if begun.get("task") != task.name:
        return begun
    return {**begun, "options": task.from_options(begun["options"]).lasting_options(), "from": bool(begun.get("from"))}


def _start(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a run started from, as far as it matters: not where that is."""
    return {} if record is None else {"from": {name: record[name] for name in ("weights_sha256", "scratch")}}


def _differences(got: Mapping[str, Any], begun: Mapping[str, Any]) -> str:
    """Where two nested mappings differ, in words; empty where they do not."""
    here, there = dict(_flatten(got)), {**_DEFAULTS, **dict(_flatten(begun))}
    names = [name for name in {**here, **there} if here.get(name, _DEFAULTS.get(name)) != there.get(name)]
    return ", ".join(f"{name} {here.get(name)!r} (there {there.get(name)!r})" for name in names)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


class _Work:
    """The runs of a plan, and what came of them so far."""

    def __init__(
        self,
        folder: ComparisonFolder,
        plan: Plan,
        render: Render,
        device: str | None,
        report: Report,
        watch: Watch | None,
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.render = render
        self.device = device
        self.report = report
        self.watch = watch
        self.entries: dict[Key, Entry] = {}
        self._before = {(run.get("row"), run.get("seed")): run for run in folder.read_runs()}
        self._seconds: list[float] = []
        self._evaluated = 0
        self._said: set[str] = set()

    def do(self, queue: Sequence[Key]) -> int | None:
        """Score what is trained, and train and score what of `queue` is not; the signal that stopped it, if one did."""
        keys = [(row, seed) for row, seeds in self.plan.seeds.items() for seed in seeds]
        self.entries = {key: self._pending(*key) for key in keys}
        trained = [key for key in keys if self.folder.run(*key).read_metrics() is not None]
        for key in trained:
            evaluated = self._evaluated
            self.entries[key] = self._score(*key)
            if self._evaluated > evaluated:
                # Interrupted, it goes on after this one.
                self.publish()
        todo = [key for key in queue if key not in trained]
        for number, (row, seed) in enumerate(todo):
            self.publish()
            place = f"run {len(queue) - len(todo) + number + 1} of {len(queue)}"
            self.report(f"{place}: {row.label}, seed {seed}{self._time_left(len(todo) - number)}")
            signal = self._train(row, seed)
            if signal is not None:
                return signal
        return None

    def publish(self) -> dict[str, Any]:
        """Write the results as they are now, and return them."""
        results = make_results(self.plan, list(self.entries.values()))
        self.folder.write_results(results, self.render(results))
        return results

    def _train(self, row: Row, seed: int) -> int | None:
        run, shared, started = self.folder.run(row, seed), self.plan.shared, time.monotonic()
        anew = not run.path.exists()
        options: dict[str, Any] = {"device": self.device, "report": self._report_once, "watch": self.watch}
        try:
            if anew:
                settings = self.plan.run_settings(row, seed)
                options["source"] = self.plan.source(row, seed)
                outcome = start_run(task=shared.task, data=shared.data, settings=settings, output=run.path, **options)
            else:
                outcome = resume_run(run.path, data=shared.data, **options)
        except UserError as error:
            self.entries[row, seed] = self._fail(self._entry(row, seed, FAILED), error)
            return None
        finally:
            # A model is a web of references: what it holds on the device would be missing to the next one.
            gc.collect()
            if torch.accelerator.is_available():
                torch.accelerator.memory.empty_cache()
        # Also where the run came to its end all the same: nothing else is to be begun.
        if outcome.received is not None:
            return outcome.received
        self.entries[row, seed] = self._score(row, seed)
        if anew:
            self._seconds.append(time.monotonic() - started)
        return None

    def _report_once(self, line: str) -> None:
        """What is said of the data is the same for all runs."""
        if line not in self._said:
            self._said.add(line)
            self.report(line)

    def _entry(self, row: Row, seed: int, status: str) -> Entry:
        folder = self.folder.run(row, seed).path.relative_to(self.folder.path)
        return {"row": row.label, "seed": seed, "folder": folder.as_posix(), "status": status}

    def _pending(self, row: Row, seed: int) -> Entry:
        """The entry of a run that is not scored yet. What was found of it before is kept for when it is."""
        known = self._known(row, seed)
        return {**self._entry(row, seed, PENDING), **({"known": known} if known else {})}

    def _known(self, row: Row, seed: int) -> Mapping[str, Any]:
        """Metrics and scores that the results have from before."""
        before = self._before.get((row.label, seed), {})
        before = before.get("known", before)
        return {name: before[name] for name in ("metrics", "tests", "earlier_tests") if name in before}

    def _fail(self, entry: Entry, error: UserError) -> Entry:
        self.report(f"{entry['row']}, seed {entry['seed']} failed: {error}")
        return {**entry, "status": FAILED, "reason": str(error)}

    def _score(self, row: Row, seed: int) -> Entry:
        """The entry of a run that is trained; what is in the results from before is taken from there."""
        run, entry = self.folder.run(row, seed), self._entry(row, seed, FINISHED)
        try:
            metrics, info = run.read_metrics(), run.read_info()
            assert metrics is not None
            if describe_tokenizer(run.load_tokenizer()) != self.plan.tokenizer:
                raise UserError("its tokenizer is not that of the other rows, made by another version; train it anew")
            known = self._known(row, seed)
            same = known.get("metrics") == metrics
            scored = {**known.get("earlier_tests", {}), **known.get("tests", {})} if same else {}
            asked = {part.name for part in self.plan.tests}
            entry |= {
                "settings": info["settings"],
                "commands": info["commands"],
                "versions": info["versions"],
                "resumed_with": [other for other in info.get("resumed_with", []) if other != info["versions"]],
                "date": datetime.fromtimestamp((run.path / _METRICS).stat().st_mtime, UTC).isoformat(
                    timespec="seconds"
                ),
                "metrics": metrics,
                "validation": {"step": metrics["best"]["step"], **self._sort(metrics["best"], {"step"})},
                "last": {"step": metrics["last"]["step"], **self._sort(metrics["last"], {"step"})},
                "tests": {part.name: self._test(run, part, scored.get(part.name, {})) for part in self.plan.tests},
                # Of other calls: they may be asked for again.
                "earlier_tests": {name: test for name, test in scored.items() if name not in asked},
            }
        except UserError as error:
            return self._fail(entry, error)
        return entry

    def _test(self, run: RunFolder, part: Part, before: Mapping[str, Any]) -> Entry:
        search, scoring = self.plan.search, self.plan.scoring
        conditions: dict[str, Any] = {"fingerprint": part.fingerprint, "search": search, "truncate": scoring.truncate}
        task = self.plan.shared.task
        options = {name: task.options()[name] for name in sorted(task.scoring_options)}
        if options:
            conditions["options"] = options
        if before.get("conditions") == conditions:
            again = [name for name, reason in before["not_computed"].items() if task.can_compute(name, reason)]
            if not again:
                return dict(before)
        self._evaluated += 1
        found = evaluate_run(
            run.path,
            data=self.plan.shared.data,
            split=part.asked,
            truncate=scoring.truncate,
            device=self.device,
            report=self.report,
            scoring=options,
            **scoring.search,
        )
        return {
            "conditions": conditions,
            "examples": found["examples"],
            "truncated": found["truncated"],
            "divided": found["divided"],
            "skipped": found["skipped"],
            **self._sort(found, {*_NOT_SCORES, *(search or {})}),
        }

    def _sort(self, found: Mapping[str, Any], others: Set[str]) -> Entry:
        """The numbers in `found` that are scores; signatures; and, where there is no number, why."""
        texts = {name: value for name, value in found.items() if isinstance(value, str)}
        return {
            "scores": {
                name: value
                for name, value in found.items()
                if isinstance(value, int | float) and not isinstance(value, bool) and name not in others
            },
            "signatures": {
                name.removesuffix(_SIGNATURE): text for name, text in texts.items() if name.endswith(_SIGNATURE)
            },
            "not_computed": {name: text for name, text in texts.items() if name in self.plan.shared.task.score_labels},
        }

    def _time_left(self, runs: int) -> str:
        """From what the runs of this call took, or else from the budget; nothing while neither says anything."""
        minutes = self.plan.settings["training"]["minutes"]
        if not self._seconds and minutes is None:
            return ""
        each = statistics.fmean(self._seconds) if self._seconds else 60 * minutes
        return f" (about {format_seconds(each * runs)} left)"
