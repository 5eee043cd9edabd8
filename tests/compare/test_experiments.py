"""The experiments of benchmarks/experiments.yaml, and how they are run."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from documents import ROOT
from synthesizer_lab.cli.app import app
from synthesizer_lab.compare.experiments import read_experiments

FILE = ROOT / "benchmarks/experiments.yaml"


def test_every_command_is_valid(tmp_path: Path) -> None:
    for name, experiment in read_experiments(FILE).items():
        for program, *words in experiment.words(str(tmp_path / "absent"), str(tmp_path / "runs")):
            if words[0] == "benchmarks/decoders.py":
                # The command with another model.
                program, *words = "synthesizer", *words[2:]
            if program != "synthesizer":
                assert program in ("mkdir", "ln") or (ROOT / words[0]).is_file()
                continue
            # The default is `test`, which these data sets do not have.
            assert "--split" in words, name
            result = CliRunner().invoke(app, words)
            # The data or the runs to start from are missing; options, rows and settings are correct.
            assert result.exit_code == 1, (name, result.output)
            assert str(tmp_path) in str(result.exception) + result.output, (name, result.output)


def test_published_rows_and_pairs_are_rows() -> None:
    experiments = read_experiments(FILE)
    rows = {name: {*" ".join(each.commands).replace(",", " ").split()} for name, each in experiments.items()}
    for name, experiment in experiments.items():
        for figures in experiment.published.get("columns", {}).values():
            assert {*figures} <= rows[name], name
        for pair in experiment.pairs:
            found = [(name, row) if isinstance(row, str) else next(iter(row.items())) for row in pair]
            assert len({*found}) == 2, (name, pair)
            assert all(row in rows[home] for home, row in found), (name, pair)
