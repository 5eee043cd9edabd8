"""The experiments of benchmarks/experiments.yaml, and how they are run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from documents import ROOT
from synthesizer_lab.cli.app import app
from synthesizer_lab.compare import experiments
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


def test_experiments_that_follow_a_failed_one_are_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], results: dict[str, Any]
) -> None:
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier/results.json").write_text(json.dumps(results))
    queue = [
        _experiment("first", "synthesizer evaluate {runs}/none '[x]'"),
        _experiment("second", after=["first"]),
        _experiment("third"),
    ]
    failures = run(queue, tmp_path, tmp_path, 2, [_experiment("earlier")])
    assert failures.keys() == {"first", "second"}
    assert "unexpected extra argument" in failures["first"]
    assert "first" in failures["second"]
    assert "Usage: " in (tmp_path / "third.log").read_text()
    # Tables of earlier calls stay.
    assert (tmp_path / "results.md").read_text().startswith("## Earlier\n")
    out = capsys.readouterr().out
    assert "'[x]'" in out
    assert all(f"{name}: {reason}\n" in out for name, reason in failures.items())


def test_a_section_has_commands_table_and_notes_without_paths(tmp_path: Path, results: dict[str, Any]) -> None:
    experiment = _experiment(
        "mt",
        "synthesizer compare translation --data {data}/x --output {runs}/mt",
        about="The rows of a table.",
        published={"source": "the paper", "columns": {"BLEU there": {"vanilla": 27.67}}},
    )
    assert experiments.section(tmp_path, experiment) == ""
    (tmp_path / "mt").mkdir()
    results["from"] = str(tmp_path / "pretraining/{synthesizer}/seed-0")
    (tmp_path / "mt/results.json").write_text(json.dumps(results))
    title, about, commands, table, notes, source = experiments.section(tmp_path, experiment).split("\n\n")
    assert (title, about, source) == ("## Mt", "The rows of a table.", "Published: the paper.\n")
    assert commands == "```console\nsynthesizer compare translation --data DATA/x --output runs/mt\n```"
    assert table.split("\n")[0].endswith(" | *BLEU there* |")
    assert table.split("\n")[2].endswith(" | *27.67* |")
    assert table.split("\n")[3].endswith(" |  |")
    assert "from the weights of runs/pretraining/{synthesizer}/seed-0" in notes
    assert str(tmp_path) not in notes
    unfinished = {**results, "runs": [{"row": "dense", "status": "pending"}]}
    (tmp_path / "mt/results.json").write_text(json.dumps(unfinished))
    assert experiments.section(tmp_path, experiment) == ""


@pytest.mark.parametrize("argument", ["nothing", "--data=absent", "--data=", "--jobs=0"])
def test_wrong_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        main(["--data", ".", argument])
    assert ended.value.code == 2
    assert argument.replace("=", " ") in capsys.readouterr().err
