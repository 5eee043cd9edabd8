"""Train and score the runs of a comparison, or continue them.

The folder of a comparison:

    comparison.yaml    the rows and their seeds
    ROW/seed-N/        a run, as `synthesizer train` makes it
    results.json       every run, and every row over its seeds
    table.md           the same as a table
    index.html         the same as a page with figures and outputs

Files are replaced in one step, so a killed process leaves the old version or the new one.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from signal import SIGINT
from typing import Any

from transformers import TrainerCallback

from synthetic_attention.staging import LOCK, lock_file

from ..errors import UserError, damage_reported
from ..metrics.text import can_compute
from ..training.device import choose_training_device
from ..training.evaluation import evaluate_run
from ..training.run import Report, resume_run, start_run
from ..training.run_folder import RunFolder
from ..training.settings import load_yaml
from .page import write_page
from .plan import Comparison, Plan, differences, make_plan, recipe, tokenizer_record
from .results import FAILED, FINISHED, PENDING, make_results, read_runs
from .rows import Row, parse_rows
from .tables import markdown_page
from .workers import Outcome, train_in_processes

Entry = dict[str, Any]
Key = tuple[Row, int]
# The file of a comparison that lists its rows and their seeds.
_RECORD = "comparison.yaml"
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
    plan = make_plan(comparison, _with_earlier(folder, rows, seeds))
    runner = _Runner(folder, plan, device, report, callbacks)
    runner.check()
    folder.path.mkdir(parents=True, exist_ok=True)
    refusal = UserError(f"{folder.path}: another process runs this comparison; wait for its end")
    with lock_file(folder.path / LOCK, refusal):
        for path in (folder.path, *(path for path in folder.path.iterdir() if path.is_dir())):
            RunFolder(path).remove_left()
        folder.write_yaml(_RECORD, {"rows": {row.label: numbers for row, numbers in plan.seeds.items()}})
        # Seed by seed, so that a table with all rows exists early.
        signal = runner.run([(row, seed) for seed in seeds for row in rows], jobs)
        results = runner.publish()
        write_page(folder, results, {split.name: split for split in plan.tests.values()})
        return results, signal


def _with_earlier(folder: RunFolder, rows: Sequence[Row], seeds: Sequence[int]) -> dict[Row, list[int]]:
    """The seeds of each row: those asked for, and those that have a run.

    The order is that of `rows` if these are all rows; otherwise earlier rows come first.

    Raises:
        UserError: the folder has files but is no comparison, or its record cannot be read.
    """
    path, found = folder.path / _RECORD, dict[Row, list[int]]()
    if path.exists():
        with damage_reported(f"{path}, which lists rows and their seeds,"):
            for label, numbers in load_yaml(path.read_text(encoding="utf-8"))["rows"].items():
                (row,) = parse_rows([label])
                if trained := [seed for seed in numbers if _run_folder(folder, row, seed).exists]:
                    found[row] = trained
    elif folder.content():
        raise UserError(f"{folder.path}: the folder has files and is no comparison; choose another --output")
    order = [*rows] if set(found) <= set(rows) else [*found, *(row for row in rows if row not in found)]
    return {row: sorted({*found.get(row, []), *(seeds if row in rows else [])}) for row in order}


def _run_folder(folder: RunFolder, row: Row, seed: int) -> RunFolder:
    return RunFolder(folder.path / row.folder / f"seed-{seed}")


@dataclass
class _Runner:
    """Runs a plan. `entries` has an entry of results.json for each run."""

    folder: RunFolder
    plan: Plan
    device: str | None
    report: Report
    callbacks: Sequence[TrainerCallback]
    entries: dict[Key, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        before = {(run["row"], run["seed"]): run for run in read_runs(self.folder.path)}
        for row, seeds in self.plan.seeds.items():
            for seed in seeds:
                known = before.get((row.label, seed), {})
                # Metrics and scores of earlier calls stay until the run is scored.
                kept = {name: known[name] for name in ("metrics", "tests") if name in known}
                self.entries[row, seed] = _entry(row, seed, PENDING, **kept)

    def check(self) -> None:
        """Raise UserError if a seed cannot be used, or a run in the folder was trained in another way."""
        plan = self.plan
        for row, seed in self.entries:
            run, source = _run_folder(self.folder, row, seed), plan.sources.get((row, seed))
            settings, start = plan.run_settings(row, seed), None if source is None else source.record()
            if not run.exists:
                continue
            info, expected = run.read_info(), recipe(plan.comparison.task, settings, plan.fingerprints, start)
            task, settings, processes = run.read_task(info), run.read_settings(info), info.get("processes", 1)
            found = recipe(task, settings, info["fingerprints"], info.get("from"), processes)
            if differing := differences(expected, found):
                raise UserError(
                    f"{run.path} was trained with other settings; got {differing}. Choose another --output, or move "
                    "the run away"
                )

    def run(self, queue: Sequence[Key], jobs: int) -> int | None:
        """Score the trained runs, then train and score the rest of `queue`; returns the signal that stopped it."""
        trained = [key for key in self.entries if _run_folder(self.folder, *key).read_metrics() is not None]
        for key in trained:
            self._score(*key)
            self.publish()
        self.publish()
        runs = {key: partial(_train, self.folder, self.plan, *key, self.device) for key in queue if key not in trained}
        total, first = len(queue), len(queue) - len(runs) + 1
        if jobs > 1 and runs:
            self.report(f"training {len(runs)} of {total} runs, {jobs} at the same time; see log.jsonl of each run")
        outcomes = self._train_in_turn(runs, first, total) if jobs == 1 else train_in_processes([*runs.items()], jobs)
        try:
            with closing(outcomes):
                for number, ((row, seed), outcome) in enumerate(outcomes, first):
                    if jobs > 1:
                        self.report(f"run {number} of {total} has ended: {row.label}, seed {seed}")
                    # A signal stops the comparison even if this run finished before it.
                    if isinstance(outcome, int):
                        return outcome
                    if isinstance(outcome, UserError):
                        self._fail(row, seed, outcome)
                    else:
                        self._score(row, seed)
                    self.publish()
        except KeyboardInterrupt:
            if jobs == 1:
                raise
            # While this process scored a run; the others have stopped now.
            return SIGINT
        return None

    def _train_in_turn(
        self, runs: Mapping[Key, Callable[..., int | None]], first: int, total: int
    ) -> Generator[tuple[Key, Outcome]]:
        # Lines about the data are reported once, not for every run.
        report = cache(self.report)
        for number, (key, train) in enumerate(runs.items(), first):
            self.report(f"run {number} of {total}: {key[0].label}, seed {key[1]}")
            try:
                outcome: Outcome = train(report=report, callbacks=self.callbacks)
            except (UserError, OSError) as error:
                outcome = UserError(str(error))
            yield key, outcome

    def publish(self) -> dict[str, Any]:
        """Write results.json and table.md."""
        results = make_results(self.plan, list(self.entries.values()))
        self.folder.write_json("results.json", results)
        self.folder.write_text("table.md", markdown_page(results))
        return results

    def _fail(self, row: Row, seed: int, error: UserError) -> None:
        self.report(f"{row.label}, seed {seed} failed: {error}")
        self.entries[row, seed] = _entry(row, seed, FAILED, reason=str(error))

    def _score(self, row: Row, seed: int) -> None:
        """Make the entry of a trained run; scores that it has are not computed again."""
        run, known = _run_folder(self.folder, row, seed), self.entries[row, seed]
        try:
            metrics, info = run.read_metrics(), run.read_info()
            assert metrics is not None
            if tokenizer_record(run.load_tokenizer()) != self.plan.tokenizer:
                raise UserError("its tokenizer differs from the other rows'; another version made it, train it again")
            before = known.get("tests", {}) if known.get("metrics") == metrics else {}
            with damage_reported(f"{run.path}: metrics.json"):
                kept = {"validation": metrics["best"], "last": metrics["last"]}
                scores = {name: {"step": part["step"], **self._scores(part)} for name, part in kept.items()}
            tests = {split.name: self._test(run, asked, before) for asked, split in self.plan.tests.items()}
        except UserError as error:
            self._fail(row, seed, error)
            return
        trained = datetime.fromtimestamp((run.path / "metrics.json").stat().st_mtime, UTC)
        self.entries[row, seed] = _entry(
            row,
            seed,
            FINISHED,
            **{name: info[name] for name in ("settings", "commands", "versions")},
            date=trained.isoformat(timespec="seconds"),
            metrics=metrics,
            **scores,
            # Splits of other calls stay: they may be asked for again.
            tests=before | tests,
        )

    def _test(self, run: RunFolder, asked: str, before: Mapping[str, Any]) -> Entry:
        comparison, split = self.plan.comparison, self.plan.tests[asked]
        task, known = comparison.task, before.get(split.name)
        options = {name: value for name, value in asdict(task).items() if name in task.evaluation_options}
        conditions: dict[str, Any] = {
            "fingerprint": split.fingerprint(),
            "generation": self.plan.generation,
            "on_long": comparison.test_on_long,
            "options": options,
        }
        if known and known["conditions"] == conditions and not any(map(can_compute, known["not_computed"].values())):
            return dict(known)
        found = evaluate_run(
            run.path,
            data=comparison.data,
            split=asked,
            on_long=comparison.test_on_long,
            device=self.device,
            report=self.report,
            scoring=options,
            **comparison.generation,
        )
        return {
            "conditions": conditions,
            "predictions": found["predictions"] and Path(found["predictions"]).relative_to(run.path).as_posix(),
            **{name: found[name] for name in ("examples", "truncated", "skipped")},
            **self._scores(found),
        }

    def _scores(self, found: Mapping[str, Any]) -> Entry:
        """The scores in `found`, their signatures, and the reasons of scores that could not be computed."""
        others, labels = {*_NOT_SCORES, *(self.plan.generation or {})}, self.plan.comparison.task.score_labels
        numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
        texts = {name: value for name, value in found.items() if isinstance(value, str)}
        return {
            "scores": {name: value for name, value in numbers.items() if name not in others},
            "signatures": {
                name.removesuffix(_SIGNATURE): text for name, text in texts.items() if name.endswith(_SIGNATURE)
            },
            "not_computed": {name: text for name, text in texts.items() if name in labels},
        }


def _silent(line: str) -> None:
    pass


def _train(
    folder: RunFolder,
    plan: Plan,
    row: Row,
    seed: int,
    device: str | None,
    report: Report = _silent,
    callbacks: Sequence[TrainerCallback] = (),
) -> int | None:
    """Train a run, or continue it; returns the signal that stopped it, if one did."""
    run, comparison = _run_folder(folder, row, seed), plan.comparison
    options: dict[str, Any] = {"data": comparison.data, "device": device, "report": report, "callbacks": callbacks}
    try:
        if run.exists:
            return resume_run(run.path, **options).signal
        settings, source = plan.run_settings(row, seed), plan.sources.get((row, seed))
        task = comparison.task
        return start_run(task=task, settings=settings, output=run.path, pretrained=source, **options).signal
    finally:
        # A model has reference cycles: free its memory before the next run.
        gc.collect()


def _entry(row: Row, seed: int, status: str, **more: Any) -> Entry:
    return {"row": row.label, "seed": seed, "folder": f"{row.folder}/seed-{seed}", "status": status, **more}
