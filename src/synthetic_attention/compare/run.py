"""Train and score the runs of a comparison, or continue them.

The folder of a comparison:

    comparison.yaml    the rows and their seeds
    ROW/seed-N/        a run, as `synthesizer train` makes it
    results.json       every run, and every row over its seeds
    table.md           the same as a table

Files are replaced in one step, so a killed process leaves the old version or the new one.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import TrainerCallback

from ..errors import UserError
from ..metrics.text import can_compute
from ..training.device import choose_training_device
from ..training.evaluation import evaluate_run
from ..training.run import Report, resume_run, start_run
from ..training.run_folder import RunFolder, lock_folder
from .plan import Comparison, Plan, differences, make_plan, recipe, tokenizer_record
from .results import FAILED, FINISHED, PENDING, make_results, markdown_page, read_runs
from .rows import RECORD, Row, parse_rows, read_record

__all__ = ["compare"]

Entry = dict[str, Any]
# Numbers of an evaluation that are no scores.
_NOT_SCORES = {"examples", "truncated", "divided", "skipped", "seconds", "examples_per_second"}
_SIGNATURE = "_signature"


def compare(
    comparison: Comparison,
    rows: Sequence[Row],
    seeds: Sequence[int],
    output: Path,
    *,
    device: str | None = None,
    report: Report = print,
    callbacks: Sequence[TrainerCallback] = (),
) -> tuple[dict[str, Any], int | None]:
    """Train and score every row with every seed into the folder `output`, or continue the comparison there.

    Finished runs are kept; a stopped run continues from its checkpoint. Rows and seeds of earlier calls stay in the
    results and are scored on new splits too. If a run fails, its entry has the reason and the others continue; the next
    call tries it again.

    Args:
        device, report, callbacks: as for `start_run`, for all runs.

    Returns:
        The content of results.json, and the signal that stopped the comparison, if one did.

    Raises:
        UserError: an argument cannot be used, or a run in `output` was trained in another way. Nothing is written then.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("compare runs in one process; start it without torchrun, or train the runs one by one")
    choose_training_device(device)
    folder = output.resolve()
    # The name of a run inside: `check_new` refuses folders with content.
    RunFolder(folder / "row").check_new(overwrite=False)
    merged = _merged(folder, rows, seeds)
    plan = make_plan(comparison, merged)
    _check_runs(folder, plan)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, f"{folder}: another process runs this comparison; wait for its end"):
        if _merged(folder, rows, seeds) != merged:
            raise UserError(f"{folder}: another process changed this comparison; run the same command again")
        for path in (folder, *(path for path in folder.iterdir() if path.is_dir())):
            RunFolder(path).remove_partial()
        record = {"rows": {row.label: numbers for row, numbers in plan.seeds.items()}}
        RunFolder(folder).write_text(RECORD, yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=120))
        runner = _Runner(folder, plan, device, report, callbacks)
        # Seed by seed, so that a table with all rows exists early.
        signal = runner.run([(row, seed) for seed in seeds for row in rows])
        return runner.publish(), signal


def _run_folder(folder: Path, row: Row, seed: int) -> RunFolder:
    return RunFolder(folder / row.folder / f"seed-{seed}")


def _merged(folder: Path, rows: Sequence[Row], seeds: Sequence[int]) -> dict[Row, list[int]]:
    """The seeds of each row: those asked for, and those that have a run.

    The order is that of `rows` if these are all rows; otherwise earlier rows come first.

    Raises:
        UserError: the folder has files, but is no comparison.
    """
    record = read_record(folder)
    if record is None and folder.exists() and RunFolder(folder).has_content:
        raise UserError(f"{folder}: the folder has files and is no comparison; choose another --output")
    merged: dict[Row, list[int]] = {}
    for label, numbers in (record or {}).items():
        (row,) = parse_rows([label])
        if trained := [seed for seed in numbers if _run_folder(folder, row, seed).exists]:
            merged[row] = trained
    order = [*rows] if set(merged) <= set(rows) else [*merged, *(row for row in rows if row not in merged)]
    return {row: sorted({*merged.get(row, []), *(seeds if row in rows else [])}) for row in order}


def _check_runs(folder: Path, plan: Plan) -> None:
    """Check that the runs in the folder were trained as this comparison trains them.

    Raises:
        UserError: a run differs; the message says how.
    """
    task = plan.comparison.task
    for row, seed in plan.runs():
        run, source = _run_folder(folder, row, seed), plan.sources.get((row, seed))
        if run.exists:
            info = run.read_info()
            expected = recipe(
                task, plan.run_settings(row, seed), plan.fingerprints, None if source is None else source.record()
            )
            found = recipe(run.read_task(info), run.read_settings(info), info["fingerprints"], info.get("from"))
            if differing := differences(expected, found):
                raise UserError(
                    f"{run.path} was trained with other settings; got {differing}. Choose another --output, or move "
                    "the run away"
                )


class _Runner:
    """Runs a plan. `entries` has an entry of results.json for each run."""

    def __init__(
        self, folder: Path, plan: Plan, device: str | None, report: Report, callbacks: Sequence[TrainerCallback]
    ) -> None:
        self.folder, self.plan, self.device, self.report, self.callbacks = folder, plan, device, report, callbacks
        self._before = {(run["row"], run["seed"]): run for run in read_runs(folder)}
        self.entries = {
            (row, seed): {**self._entry(row, seed, PENDING), **self._known(row, seed)} for row, seed in plan.runs()
        }
        self._reported: set[str] = set()

    def run(self, queue: Sequence[tuple[Row, int]]) -> int | None:
        """Score the trained runs, then train and score the rest of `queue`; returns the signal that stopped it."""
        trained = [key for key in self.entries if _run_folder(self.folder, *key).read_metrics() is not None]
        for key in trained:
            self.entries[key] = self._score(*key)
            self.publish()
        todo = [key for key in queue if key not in trained]
        for number, (row, seed) in enumerate(todo):
            self.publish()
            place = f"run {len(queue) - len(todo) + number + 1} of {len(queue)}"
            self.report(f"{place}: {row.label}, seed {seed}")
            signal = self._train(row, seed)
            if signal is not None:
                return signal
        return None

    def publish(self) -> dict[str, Any]:
        """Write results.json and table.md."""
        results = make_results(self.plan, list(self.entries.values()))
        RunFolder(self.folder).write_json("results.json", results)
        RunFolder(self.folder).write_text("table.md", markdown_page(results))
        return results

    def _train(self, row: Row, seed: int) -> int | None:
        run, comparison = _run_folder(self.folder, row, seed), self.plan.comparison
        options: dict[str, Any] = {
            "data": comparison.data,
            "device": self.device,
            "report": self._report_once,
            "callbacks": self.callbacks,
        }
        try:
            if not run.exists:
                settings, source = self.plan.run_settings(row, seed), self.plan.sources.get((row, seed))
                outcome = start_run(
                    task=comparison.task, settings=settings, output=run.path, pretrained=source, **options
                )
            else:
                outcome = resume_run(run.path, **options)
        except UserError as error:
            self.entries[row, seed] = self._failed(self._entry(row, seed, FAILED), error)
            return None
        finally:
            # A model has reference cycles: free its memory on the device before the next run.
            gc.collect()
            if torch.accelerator.is_available():
                torch.accelerator.memory.empty_cache()
        # A signal stops the comparison even if this run finished before it.
        if outcome.received is not None:
            return outcome.received
        self.entries[row, seed] = self._score(row, seed)
        return None

    def _report_once(self, line: str) -> None:
        """Report lines about the data once, not for every run."""
        if line not in self._reported:
            self._reported.add(line)
            self.report(line)

    def _entry(self, row: Row, seed: int, status: str) -> Entry:
        return {"row": row.label, "seed": seed, "folder": f"{row.folder}/seed-{seed}", "status": status}

    def _known(self, row: Row, seed: int) -> Entry:
        """Metrics and scores that earlier results have for a run."""
        before = self._before.get((row.label, seed), {})
        return {name: before[name] for name in ("metrics", "tests") if name in before}

    def _failed(self, entry: Entry, error: UserError) -> Entry:
        self.report(f"{entry['row']}, seed {entry['seed']} failed: {error}")
        return {**entry, "status": FAILED, "reason": str(error)}

    def _score(self, row: Row, seed: int) -> Entry:
        """The entry of a trained run; scores in the earlier results are not computed again."""
        run, entry, known = (
            _run_folder(self.folder, row, seed),
            self._entry(row, seed, FINISHED),
            self._known(row, seed),
        )
        try:
            metrics, info = run.read_metrics(), run.read_info()
            assert metrics is not None
            if tokenizer_record(run.load_tokenizer()) != self.plan.tokenizer:
                raise UserError("its tokenizer differs from the other rows'; another version made it, train it again")
            before = known.get("tests", {}) if known.get("metrics") == metrics else {}
            trained = datetime.fromtimestamp((run.path / "metrics.json").stat().st_mtime, UTC)
            return entry | {
                "settings": info["settings"],
                "commands": info["commands"],
                "versions": info["versions"],
                "date": trained.isoformat(timespec="seconds"),
                "metrics": metrics,
                "validation": {"step": metrics["best"]["step"], **self._sorted(metrics["best"], {"step"})},
                "last": {"step": metrics["last"]["step"], **self._sorted(metrics["last"], {"step"})},
                # Splits of other calls stay: they may be asked for again.
                "tests": before
                | {split.name: self._test(run, asked, before) for asked, split in self.plan.tests.items()},
            }
        except UserError as error:
            return self._failed(entry, error)

    def _test(self, run: RunFolder, asked: str, before: Mapping[str, Any]) -> Entry:
        comparison, split, generation = self.plan.comparison, self.plan.tests[asked], self.plan.generation
        task, known = comparison.task, before.get(split.name)
        options = {name: value for name, value in asdict(task).items() if name in task.evaluation_options}
        conditions: dict[str, Any] = {
            "fingerprint": split.fingerprint(),
            "generation": generation,
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
        predictions = found["predictions"] and Path(found["predictions"]).relative_to(run.path).as_posix()
        return {
            "conditions": conditions,
            "predictions": predictions,
            **{name: found[name] for name in ("examples", "truncated", "divided", "skipped")},
            **self._sorted(found, {*_NOT_SCORES, *(generation or {})}),
        }

    def _sorted(self, found: Mapping[str, Any], others: Set[str]) -> Entry:
        """The scores in `found`, their signatures, and the reasons of scores that could not be computed."""
        texts = {name: value for name, value in found.items() if isinstance(value, str)}
        labels = self.plan.comparison.task.score_labels
        return {
            "scores": {
                name: value
                for name, value in found.items()
                if isinstance(value, int | float) and not isinstance(value, bool) and name not in others
            },
            "signatures": {
                name.removesuffix(_SIGNATURE): text for name, text in texts.items() if name.endswith(_SIGNATURE)
            },
            "not_computed": {name: text for name, text in texts.items() if name in labels},
        }
