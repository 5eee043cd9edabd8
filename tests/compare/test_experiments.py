"""The experiments of benchmarks/experiments.yaml, and how they are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from documents import ROOT
from synthesizer_lab.cli.app import app
from synthesizer_lab.compare.experiments import Experiment, main, read_experiments, run, with_requirements

FILE = ROOT / "benchmarks/experiments.yaml"


def _experiment(name: str, command: str = "synthesizer --help", **changes: Any) -> Experiment:
    return Experiment(name=name, title=name.title(), commands=[command], **changes)


def test_every_command_is_valid(tmp_path: Path) -> None:
    for experiment in read_experiments(FILE).values():
        for program, *words in experiment.words(str(tmp_path / "absent"), str(tmp_path / "runs")):
            if words[0] == "benchmarks/gpt2.py":
                # The command with another model.
                program, *words = "synthesizer", *words[1:]
            if program != "synthesizer":
                assert program in ("mkdir", "ln") or (ROOT / words[0]).is_file()
                continue
            # The default is `test`, which these data sets do not have.
            assert "--split" in words, experiment.name
            result = CliRunner().invoke(app, words)
            # The data or the runs to start from are missing; options, rows and settings are correct.
            assert result.exit_code == 1, (experiment.name, result.output)
            assert str(tmp_path) in str(result.exception) + result.output, (experiment.name, result.output)


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


def test_an_experiment_needs_those_it_follows(tmp_path: Path) -> None:
    path = tmp_path / "experiments.yaml"
    path.write_text("a: {title: A, commands: []}\nb: {title: B, commands: [], after: [a]}\nc: {title: C, commands: []}")
    found = read_experiments(path)
    assert [experiment.name for experiment in with_requirements(found, ["b"])] == ["a", "b"]
    assert [experiment.name for experiment in with_requirements(found, [])] == ["a", "b", "c"]


def test_experiments_that_follow_a_failed_one_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = [
        _experiment("first", "synthesizer evaluate {runs}/none '[x]'"),
        _experiment("second", after=["first"]),
        _experiment("third"),
    ]
    failures = run(queue, tmp_path, tmp_path)
    assert failures.keys() == {"first", "second"}
    assert "unexpected extra argument" in failures["first"]
    assert "first" in failures["second"]
    assert "Usage: " in (tmp_path / "third.log").read_text()
    out = capsys.readouterr().out
    assert "'[x]'" in out
    assert all(f"{name}: {reason}\n" in out for name, reason in failures.items())


@pytest.mark.parametrize("argument", ["nothing", "--data=absent", "--data="])
def test_wrong_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        main(["--data", ".", argument])
    assert ended.value.code == 2
    assert argument.replace("=", " ") in capsys.readouterr().err
