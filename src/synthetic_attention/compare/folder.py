"""The folder of a comparison.

    comparison.yaml    what all runs share, and the rows and seeds asked for so far
    ROW/seed-N/        a run, as `synthesizer train` makes it
    results.json       every run, and every row over its seeds
    table.md           the same as a table

Every file is written beside its place and then moved into it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..tasks import UserError
from ..training.failures import one_line
from ..training.locks import LOCK, hold
from ..training.run_folder import RunFolder
from .rows import Row, parse_rows

__all__ = ["ComparisonFolder"]

_RECORD, _RESULTS, _TABLE = "comparison.yaml", "results.json", "table.md"


@dataclass(frozen=True)
class ComparisonFolder:
    """A comparison at `path`. Nothing is read or made until a method is called."""

    path: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the folder for this process; it is made if it is not there, and taken away again if it stays empty.

        Raises:
            UserError: another process has it, something else is in it, or it cannot be made.
        """
        # A path below it, so that what is in it is not asked for.
        RunFolder(self.path / "rows").check_new(overwrite=False)
        made = not self.path.exists()
        if not made and not (self.path / _RECORD).is_file() and not self._is_empty():
            raise UserError(f"{self.path}: the folder has files and is no comparison; choose another --output")
        self.path.mkdir(parents=True, exist_ok=True)
        with hold(self.path, f"{self.path}: another comparison is at work there; wait for its end"):
            try:
                yield
            finally:
                if self._is_empty():
                    (self.path / LOCK).unlink(missing_ok=True)
                    if made:
                        self.path.rmdir()

    def _is_empty(self) -> bool:
        return all(path.name == LOCK for path in self.path.iterdir())

    def run(self, row: Row, seed: int) -> RunFolder:
        """The run of a row and a seed."""
        return RunFolder(self.path / row.folder / f"seed-{seed}")

    def read_record(self) -> dict[str, Any] | None:
        """What comparison.yaml has; None where there is none yet.

        Raises:
            UserError: it cannot be read.
        """
        path = self.path / _RECORD
        if not path.is_file():
            return None
        try:
            record = yaml.safe_load(path.read_text(encoding="utf-8"))
            if not isinstance(record["shared"], dict):
                raise TypeError("expected what is shared by the rows")
            for label, seeds in record["rows"].items():
                if not isinstance(label, str) or not all(isinstance(seed, int) for seed in seeds):
                    raise TypeError("expected rows with their seeds")
        except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: not what `synthesizer compare` writes: {one_line(error)}") from None
        return dict(record)

    def write_record(self, shared: Mapping[str, Any], seeds: Mapping[str, Sequence[int]]) -> None:
        """Write comparison.yaml: what all runs share, and the seeds of each row by its label."""
        record = {"shared": dict(shared), "rows": {label: list(numbers) for label, numbers in seeds.items()}}
        text = yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=120)
        RunFolder(self.path).write_text(_RECORD, text)

    def merge(self, rows: Sequence[Row], seeds: Sequence[int]) -> dict[Row, list[int]]:
        """The seeds of each row: those asked for, and those that have a run from before.

        In the order of `rows` if these are all rows there are, else what was there comes first.

        Raises:
            UserError: comparison.yaml cannot be read.
        """
        merged: dict[Row, list[int]] = {}
        record = self.read_record() or {"rows": {}}
        for label, numbers in record["rows"].items():
            (row,) = parse_rows([label])
            if there := [seed for seed in numbers if self.run(row, seed).path.exists()]:
                merged[row] = there
        order = [*rows] if set(merged) <= set(rows) else [*merged, *(row for row in rows if row not in merged)]
        return {row: sorted({*merged.get(row, []), *(seeds if row in rows else [])}) for row in order}

    def remove_partial(self) -> None:
        """Remove what a kill in the middle of writing has left."""
        for path in (self.path, *(path for path in self.path.iterdir() if path.is_dir())):
            RunFolder(path).remove_partial()

    def read_runs(self) -> list[dict[str, Any]]:
        """The runs in results.json; none where there is no such file, or it is damaged: then all is scored again."""
        try:
            runs = json.loads((self.path / _RESULTS).read_text(encoding="utf-8"))["runs"]
        except (FileNotFoundError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError):
            return []
        return [run for run in runs if isinstance(run, dict)]

    def write_results(self, results: Mapping[str, Any], table: str) -> None:
        """Write results.json and table.md."""
        home = RunFolder(self.path)
        home.write_json(_RESULTS, results)
        home.write_text(_TABLE, table)
