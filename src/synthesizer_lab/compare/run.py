"""Train and score the runs of a comparison, or continue them.

The folder of a comparison:

    ROW/seed-N/        a run, as `synthesizer train` makes it
    results.json       every run, and every row over its seeds
    table.md           the same as a table
    index.html         the same as a page with figures and outputs

Files are replaced in one step, so a killed process leaves the old version or the new one.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..errors import UserError
from ..metrics.text import can_compute
from ..staging import LOCK, lock_file
from ..tasks.large import Report
from ..training.callbacks import StopRequest
from ..training.device import choose_training_device
from ..training.evaluation import evaluate_run
from ..training.run import resume_run, start_run
from ..training.run_folder import RunFolder
from .page import write_page
from .plan import Comparison, Plan, tokenizer_record
from .results import FAILED, FINISHED, PENDING, Results, make_results, paired_bootstrap, read_results, test_name
from .rows import Row, parse_rows
from .tables import markdown_page
from .workers import call_in_processes

Entry = dict[str, Any]
Key = tuple[Row, int]
# Numbers of an evaluation that are no scores.
_NOT_SCORES = {"step", "examples", "truncated", "skipped", "seconds", "examples_per_second"}
_SIGNATURE = "_signature"


def compare(
    comparison: Comparison,
    rows: Sequence[Row],
    seeds: Sequence[int],
    output: Path,
    *,
    jobs: int = 1,
    device: str | None = None,
    report: Report = print,
    callbacks: Sequence[TrainerCallback] = (),
) -> tuple[dict[str, Any], int | None]:
    """Train and score every row with every seed into the folder `output`, or continue the comparison there.

    Finished runs are kept; a stopped run continues from its checkpoint. Rows and seeds of earlier calls stay in the
    results and are scored on new splits too. If a run fails, its entry has the reason and the others continue; the next
    call tries it again.

    Args:
        jobs: train so many runs at the same time, each in its own process, without callbacks.
        device, report, callbacks: as for `start_run`, for all runs.

    Returns:
        The content of results.json, and the signal that stopped the comparison, if one did.

    Raises:
        UserError: an argument cannot be used, or a run in `output` was trained in another way. Nothing is written then.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(
            "compare trains each run in one process; start it without torchrun, and give --jobs for several"
        )
    choose_training_device(device)
    folder = RunFolder(output.resolve())
    # The name of a run inside: `check_new` refuses folders with content.
    RunFolder(folder.path / "row").check_new()
    earlier = read_results(folder.path)
    if folder.content() and not earlier["rows"]:
        raise UserError(f"{folder.path}: the folder has files and is no comparison; choose another --output")
    plan = Plan(comparison, _with_earlier(folder, earlier, rows, seeds))
    known = {(run["row"], run["seed"]): run for run in earlier["runs"]}
    # Seed by seed, so that a table with all rows exists early.
    entries, queue = {}, [(row, seed) for seed in seeds for row in rows]
    for row, seed in ((row, seed) for row, own in plan.seeds.items() for seed in own):
        plan.check_run(_run_folder(folder, row, seed), row, seed)
        # Scores of earlier calls stay until the run is scored, a failure until it is tried again.
        before = known.get((row.label, seed), {})
        failure = ("status", "reason") if before.get("status") == FAILED and (row, seed) not in queue else ()
        kept = {name: before[name] for name in ("metrics", "tests", *failure) if name in before}
        entries[row, seed] = _entry(row, seed, PENDING) | kept
    folder.path.mkdir(parents=True, exist_ok=True)
    refusal = UserError(f"{folder.path}: another process runs this comparison; wait for its end")
    with lock_file(folder.path / LOCK, refusal):
        # Lines about the data are reported once, not for every run.
        runner = _Runner(folder, plan, device, cache(report), callbacks, entries)
        signal = runner.run(queue, jobs)
        results, splits = runner.publish(), {test_name(split.name): split for split in plan.tests.values()}
        results["bootstrap"] = paired_bootstrap(results, folder.path, splits)
        folder.write_json("results.json", results)
        write_page(folder, results, splits)
        return results, signal


def _with_earlier(
    folder: RunFolder, earlier: Results, rows: Sequence[Row], seeds: Sequence[int]
) -> dict[Row, list[int]]:
    """The seeds of each row: those that have a run, and those asked for."""
    found = dict[Row, list[int]]()
    for entry in earlier["rows"]:
        (row,) = parse_rows([entry["row"]])
        if trained := [seed for seed in entry["seeds"] if _run_folder(folder, row, seed).exists]:
            found[row] = trained
    asked = {row: [*seeds] for row in rows}
    return {row: sorted({*found.get(row, ()), *asked.get(row, ())}) for row in found | asked}


def _run_folder(folder: RunFolder, row: Row, seed: int) -> RunFolder:
    return RunFolder(folder.path / row.folder / f"seed-{seed}")


def _entry(row: Row, seed: int, status: str, **more: Any) -> Entry:
    """An entry of results.json."""
    return {"row": row.label, "seed": seed, "folder": f"{row.folder}/seed-{seed}", "status": status, **more}


def _silent(line: str) -> None:
    pass


@dataclass
class _Runner:
    """Trains and scores the runs of a plan. `entries` has an entry of results.json for each run."""

    folder: RunFolder
    plan: Plan
    device: str | None
    report: Report
    callbacks: Sequence[TrainerCallback]
    entries: dict[Key, Entry]

    def run(self, queue: Sequence[Key], jobs: int) -> int | None:
        """Score the trained runs, then train and score the rest of `queue`; returns the signal that stopped it."""
        trained = [key for key in self.entries if _run_folder(self.folder, *key).read_metrics() is not None]
        for key in trained:
            self._add(key, self.train_and_score(*key))
        self.publish()
        rest = [key for key in queue if key not in trained]
        if jobs > 1 and rest:
            return self._run_in_processes(rest, jobs)
        for number, (row, seed) in enumerate(rest, start=1):
            self.report(f"run {number} of {len(rest)}: {row.label}, seed {seed}")
            outcome = self.train_and_score(row, seed)
            if isinstance(outcome, int):
                return outcome
            self._add((row, seed), outcome)
        return None

    def _run_in_processes(self, keys: Sequence[Key], jobs: int) -> int | None:
        self.report(f"training {len(keys)} runs, {jobs} at the same time; see log.jsonl of each run")
        silent, stop = replace(self, report=_silent, callbacks=(), entries={}), StopRequest()
        calls = {key: partial(silent.train_and_score, *key) for key in keys}
        with closing(call_in_processes(calls, jobs, stop)) as outcomes:
            for (row, seed), outcome in outcomes:
                # A run that was stopped stays pending.
                if not isinstance(outcome, int):
                    self._add((row, seed), outcome)
                    self.report(f"{row.label}, seed {seed} has ended")
        return stop.received

    def _add(self, key: Key, outcome: Entry | int | UserError) -> None:
        """Publish the entry of a run, or the reason of its failure."""
        row, seed = key
        entry = outcome if isinstance(outcome, dict) else _entry(row, seed, FAILED, reason=str(outcome))
        if entry["status"] == FAILED:
            entry = self.entries[key] | entry
            self.report(f"{row.label}, seed {seed} failed: {entry['reason']}")
        self.entries[key] = entry
        self.publish()

    def publish(self) -> dict[str, Any]:
        """Write results.json and table.md."""
        results = make_results(self.plan, list(self.entries.values()))
        self.folder.write_json("results.json", results)
        self.folder.write_text("table.md", markdown_page(results))
        return results

    def train_and_score(self, row: Row, seed: int) -> Entry | int:
        """The entry of a run, which is trained or continued first; or the signal that stopped its training."""
        run = _run_folder(self.folder, row, seed)
        try:
            if run.read_metrics() is None and (signal := self._train(run, row, seed)) is not None:
                return signal
            return _entry(row, seed, FINISHED, **self._score(run, self.entries.get((row, seed), {})))
        except (UserError, OSError) as error:
            return _entry(row, seed, FAILED, reason=str(error))
        finally:
            # A model has reference cycles: free its memory before the next run.
            gc.collect()

    def _train(self, run: RunFolder, row: Row, seed: int) -> int | None:
        comparison = self.plan.comparison
        options: dict[str, Any] = {"data": comparison.data, "device": self.device}
        options |= {"report": self.report, "callbacks": self.callbacks}
        if run.exists:
            return resume_run(run.path, **options).signal
        settings, source = self.plan.run_settings(row, seed), self.plan.sources.get((row, seed))
        return start_run(task=comparison.task, settings=settings, output=run.path, pretrained=source, **options).signal

    def _score(self, run: RunFolder, known: Mapping[str, Any]) -> Entry:
        """The settings, metrics and scores of a trained run; scores that are `known` are not computed again."""
        metrics, info = run.read_metrics(), run.read_info()
        assert metrics is not None
        if info["fingerprints"] != self.plan.fingerprints:
            raise UserError("its data differs from the other rows'; restore the files, and move the run away")
        if tokenizer_record(run.load_tokenizer()) != self.plan.tokenizer:
            raise UserError("its tokenizer differs from the other rows'; another version made it, train it again")
        before = known.get("tests", {}) if known.get("metrics") == metrics else {}
        parts = {"validation": metrics["best"], "last": metrics["last"]}
        trained = datetime.fromtimestamp((run.path / "metrics.json").stat().st_mtime, UTC)
        return {
            **{name: info[name] for name in ("settings", "commands", "versions")},
            "date": trained.isoformat(timespec="seconds"),
            "metrics": metrics,
            **{name: {"step": part["step"], **self._split_scores(part)} for name, part in parts.items()},
            # Splits of other calls stay: they may be asked for again.
            "tests": before | dict(self._test(run, asked, before) for asked in self.plan.tests),
        }

    def _test(self, run: RunFolder, asked: str, before: Mapping[str, Any]) -> tuple[str, Entry]:
        comparison, split = self.plan.comparison, self.plan.tests[asked]
        name, options = test_name(split.name), self.plan.scoring
        known = before.get(name)
        conditions: dict[str, Any] = {
            "fingerprint": split.fingerprint(),
            "generation": self.plan.generation,
            "on_long": self.plan.on_long,
            "options": options,
        }
        if known and known["conditions"] == conditions and not any(map(can_compute, known["not_computed"].values())):
            return name, dict(known)
        found = evaluate_run(
            run.path,
            data=comparison.data,
            split=asked,
            on_long=self.plan.on_long,
            device=self.device,
            report=self.report,
            scoring=options,
            **comparison.generation,
        )
        if found["fingerprint"] != conditions["fingerprint"]:
            raise UserError(f"{comparison.data}: {split.name} is not the split that the comparison began with")
        return name, {
            "conditions": conditions,
            "predictions": found["predictions"] and Path(found["predictions"]).relative_to(run.path).as_posix(),
            **{key: found[key] for key in ("examples", "truncated", "skipped")},
            **self._split_scores(found),
        }

    def _split_scores(self, found: Mapping[str, Any]) -> Entry:
        """The scores in `found`, their signatures, and the reasons of scores that could not be computed."""
        others, labels = {*_NOT_SCORES, *(self.plan.generation or {})}, self.plan.comparison.task.score_labels
        numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
        texts = {name: value for name, value in found.items() if isinstance(value, str)}
        signed = [name for name in texts if name.endswith(_SIGNATURE)]
        return {
            "scores": {name: value for name, value in numbers.items() if name not in others},
            "signatures": {name.removesuffix(_SIGNATURE): texts[name] for name in signed},
            "not_computed": {name: text for name, text in texts.items() if name in labels},
        }
