"""The experiments that can be run again: that their commands are commands, and what is made of their results."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from documents import ROOT
from scripts import load_script
from synthetic_attention.cli import app


@pytest.fixture(scope="module")
def reproduce() -> Any:
    return load_script("reproduce")


def test_every_command_is_one_and_looks_for_its_data(reproduce: Any, tmp_path: Path) -> None:
    for experiment in reproduce.read_experiments().values():
        for program, *words in experiment.words(str(tmp_path / "absent"), str(tmp_path / "runs")):
            if program == "python":
                assert (ROOT / words[0]).is_file()
                continue
            # The default is `test`, which these data sets do not have.
            assert words[0] != "compare" or "--split" in words, experiment.name
            result = CliRunner().invoke(app, words)
            # What is missed is the data, or the runs to start from: no option, row or setting.
            assert result.exit_code == 1, (experiment.name, result.output)
            assert str(tmp_path) in str(result.exception) + result.output, (experiment.name, result.output)


def test_published_rows_are_rows(reproduce: Any) -> None:
    for experiment in reproduce.read_experiments().values():
        text = " ".join(experiment.commands)
        for figures in experiment.published.columns.values() if experiment.published else ():
            for row in figures:
                assert row in text.replace(",", " ").split(), (experiment.name, row)


def test_an_experiment_brings_those_it_comes_after(reproduce: Any, tmp_path: Path) -> None:
    path = tmp_path / "experiments.yaml"
    path.write_text("a: {title: A, commands: []}\nb: {title: B, commands: [], after: [a]}\nc: {title: C, commands: []}")
    experiments = reproduce.read_experiments(path)
    assert [experiment.name for experiment in reproduce.closure(experiments, ["b"])] == ["a", "b"]
    assert [experiment.name for experiment in reproduce.closure(experiments, [])] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: {title: A, commands: [], order: 1}", "a: got order; expected some of"),
        ("a: {title: A, commands: [], after: [b]}\nb: {title: B, commands: []}", "comes after b, which is not above"),
    ],
)
def test_a_bad_file_says_what_is_wrong(reproduce: Any, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "experiments.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        reproduce.read_experiments(path)


def test_what_fails_is_said_and_what_comes_after_it_left_out(
    reproduce: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = reproduce.Experiment(name="first", title="First", commands=["evaluate {runs}/none"])
    second = reproduce.Experiment(name="second", title="Second", commands=["--help"], after=["first"])
    third = reproduce.Experiment(name="third", title="Third", commands=["--help"])
    runner = reproduce.Runner([first, second, third], tmp_path, tmp_path / "runs", jobs=2)
    runner.run()
    assert runner.failed.keys() == {"first", "second"}
    assert "none" in runner.failed["first"]
    assert "Traceback" not in runner.failed["first"]
    assert runner.failed["second"] == "it needs first"
    assert (tmp_path / "runs" / "results.md").read_text() == ""
    assert "Usage: " in (tmp_path / "runs" / "third.log").read_text()


def test_a_failure_is_known_before_what_waits_for_it_goes_on(reproduce: Any, tmp_path: Path) -> None:
    experiment = reproduce.Experiment(name="first", title="First", commands=["evaluate {runs}/none"])
    runner = reproduce.Runner([experiment], tmp_path, tmp_path / "runs", jobs=1)
    known: list[str] = []
    runner.ended["first"].set = lambda: known.extend(runner.failed)
    runner.run()
    assert known == ["first"]


def test_brackets_of_a_command_are_shown(
    reproduce: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = reproduce.Experiment(name="first", title="First", commands=["nothing '[dense, vanilla][/x]'"])
    runner = reproduce.Runner([experiment], tmp_path, tmp_path / "runs", jobs=1)
    monkeypatch.setattr(reproduce, "console", reproduce.Console(width=1000))
    runner.run()
    assert "$ synthesizer nothing '[dense, vanilla][/x]'" in capsys.readouterr().out


def test_tables_of_other_experiments_stay(reproduce: Any, tmp_path: Path) -> None:
    def make(name: str) -> Any:
        return reproduce.Experiment(name=name, title=name.title(), commands=["--help"], results=[name])

    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "results.json").write_text(json.dumps(_results()))
    reproduce.Runner([make("now")], tmp_path, tmp_path, 1, [make("before"), make("now")]).run()
    assert "## Before" in (tmp_path / "results.md").read_text()


def test_machines_that_differ_are_all_named(reproduce: Any) -> None:
    results = _results()
    results["runs"][1]["versions"] = {**results["runs"][0]["versions"], "device": "H200"}
    assert "; cpu, python 3.11.7, torch 2.13.0, transformers 5.23.0 and H200, python" in reproduce.circumstances(
        results
    )


def test_links_lead_to_the_data_and_may_be_there_already(reproduce: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("text\n")
    experiment = reproduce.Experiment(
        name="linked", title="T", commands=["--help"], links={"text/train-a.txt": "a.txt"}
    )
    for _ in range(2):
        runner = reproduce.Runner([experiment], tmp_path / "data", tmp_path / "runs", jobs=1)
        runner.run()
        assert not runner.failed
    link = tmp_path / "runs" / "text" / "train-a.txt"
    assert link.read_text() == "text\n"
    # One that is right is not made again: another experiment may be reading it.
    before = link.lstat().st_ino
    reproduce.Runner([experiment], tmp_path / "data", tmp_path / "runs", jobs=1).run()
    assert link.lstat().st_ino == before
    link.unlink()
    link.symlink_to(tmp_path / "nowhere")
    reproduce.Runner([experiment], tmp_path / "data", tmp_path / "runs", jobs=1).run()
    assert link.read_text() == "text\n"
    assert [path.name for path in link.parent.iterdir()] == ["train-a.txt"]


def test_what_cannot_be_linked_stops_what_comes_after(reproduce: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "text").write_text("a file")
    linked = reproduce.Experiment(name="linked", title="T", commands=["--help"], links={"text/a.txt": "a.txt"})
    after = reproduce.Experiment(name="after", title="T", commands=["--help"], after=["linked"])
    runner = reproduce.Runner([linked, after], tmp_path, tmp_path / "runs", jobs=2)
    runner.run()
    assert runner.failed["after"] == "it needs linked"
    assert str(tmp_path / "runs" / "text") in runner.failed["linked"]


def test_the_minutes_end_it_and_it_goes_on(
    reproduce: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a training does: a signal is heard, and something is saved. And one that hears nothing.
    saves = "signal.signal(signal.SIGTERM, lambda *_: print('saved', flush=True) or exit(0))"
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    monkeypatch.setattr(reproduce, "GRACE", 1)
    for wait, heard in ((60, saves), (60, deaf), (0, saves)):
        program = f"import signal, time\n{heard}\ntime.sleep({wait})"
        runner = reproduce.Runner([], tmp_path, tmp_path, jobs=1, minutes=2 / 60 if wait else 1)
        with (tmp_path / "log").open("wb") as stream:
            assert runner.call([sys.executable, "-c", program], stream) == (None if wait else 0)
        assert (tmp_path / "log").read_text() == ("saved\n" if wait and heard == saves else "")
        assert runner.is_over() == (wait > 0)
    late = reproduce.Runner([], tmp_path, tmp_path, jobs=1, minutes=1e-9)
    experiment = reproduce.Experiment(name="late", title="T", commands=["nothing"])
    late.experiments, late.ended["late"] = [experiment], threading.Event()
    late.run()
    assert late.failed == {"late": "the minutes are over; the same command goes on"}
    assert "$ synthesizer nothing" not in capsys.readouterr().out


def _results() -> dict[str, Any]:
    def row(name: str, finished: list[int], bleu: float, sd: float | None) -> dict[str, Any]:
        return {
            "row": name,
            "finished": finished,
            "parameters": 2_093_568,
            "match": None,
            "validation": {"loss": {"mean": 2.0714, "sd": sd}},
            "last": {"loss": {"mean": 2.0613, "sd": sd}},
            "tests": {"test": {"bleu": {"mean": bleu, "sd": sd}}} if finished else {},
        }

    def run(name: str, day: int) -> dict[str, Any]:
        return {
            "row": name,
            "status": "finished",
            "versions": versions,
            "date": f"2026-11-{day}T16:00:00+00:00",
            "metrics": {"minutes": 12.4},
            "tests": {
                "test": {
                    "signatures": {"bleu": "tok:13a"},
                    "not_computed": {"meteor": "needs Java"},
                    "examples": 100,
                    "truncated": 3,
                    "divided": 0,
                }
            },
        }

    versions = {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.23.0", "device": "cpu"}
    return {
        "score_labels": {"bleu": "BLEU", "chrf": "chrF", "meteor": "METEOR"},
        "selected_by": "bleu",
        "search": {"beams": 4},
        "data": {"valid": {"split": "test"}},
        "from": None,
        "tokenizer": {"pieces": 6000},
        "tests": {"test": {"split": "test"}},
        "budget": {"steps": 3900, "minutes": None},
        "settings": {"preset": "tiny"},
        "rows": [row("vanilla", [0, 1], 36.914, 0.314), row("random", [0], 35.5, None), row("dense", [], 0.0, None)],
        "runs": [run("vanilla", 21), run("random", 22), {"row": "dense", "status": "pending"}],
    }


def test_the_table_has_ours_and_the_published_side_by_side(reproduce: Any, tmp_path: Path) -> None:
    published = reproduce.Published(source="the paper", columns={"BLEU there": {"vanilla": 27.67, "dense": 27.43}})
    experiment = reproduce.Experiment(
        name="mt",
        title="Translation",
        about="What is compared.",
        commands=["compare translation --data {data}/x --output {runs}/mt"],
        results=["mt"],
        published=published,
    )
    (tmp_path / "mt").mkdir()
    results = {**_results(), "from": str(tmp_path / "pretraining/{synthesizer}/seed-0")}
    (tmp_path / "mt" / "results.json").write_text(json.dumps(results))
    assert reproduce.tables(tmp_path, experiment) == (
        "## Translation\n\nWhat is compared.\n\n"
        "```console\nsynthesizer compare translation --data DATA/x --output runs/mt\n```\n\n"
        "| synthesizer | seeds | parameters | validation loss | at the end | BLEU | METEOR | *BLEU there* |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| `vanilla` | 2 | 2.09 M | 2.071 ± 0.314 | 2.061 ± 0.314 | 36.91 ± 0.31 | needs Java | *27.67* |\n"
        "| `random` | 1 | 2.09 M | 2.071 | 2.061 | 35.50 | needs Java |  |\n\n"
        "Preset tiny, 3,900 steps a run (12–12 minutes); cpu, python 3.11.7, torch 2.13.0, transformers 5.23.0; "
        "2026-11-21 to 2026-11-22.\n"
        "- Checkpoints are selected by validation BLEU of greedy output; the test scores are theirs (beams 4).\n"
        "- test is what they are selected on: of other text its scores would be somewhat worse.\n"
        "- Trained from the weights of runs/pretraining/{synthesizer}/seed-0; rows with @from=none from new weights.\n"
        "- All rows: the same data and budget, one tokenizer of 6,000 pieces.\n"
        "- Rows have different seeds, so a difference may be theirs: vanilla 0, 1; random 0.\n"
        "- test: 3 of 100 inputs over the maximum length truncated.\n"
        "- BLEU: tok:13a\n- METEOR not computed: needs Java\n\nPublished: the paper.\n\n"
    )


def test_nothing_finished_is_no_section(reproduce: Any, tmp_path: Path) -> None:
    results = {**_results(), "runs": [{"row": "dense", "status": "pending"}]}
    experiment = reproduce.Experiment(name="mt", title="T", commands=[], results=["mt"])
    assert reproduce.tables(tmp_path, experiment) == ""
    (tmp_path / "mt").mkdir()
    (tmp_path / "mt" / "results.json").write_text(json.dumps(results))
    assert reproduce.tables(tmp_path, experiment) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "got unknown experiment nothing; expected some of"),
        (["--data", "absent"], "got --data absent; expected the folder"),
        (["--data", ""], "expected the folder with the data sets"),
        (["--jobs", "0"], "got --jobs 0"),
        (["--minutes", "0"], "got --minutes 0; expected more than 0"),
    ],
)
def test_bad_arguments_are_one_line(
    reproduce: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        reproduce.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_tables_of_nothing_are_empty(reproduce: Any, tmp_path: Path) -> None:
    assert reproduce.main(["--tables", "--output", str(tmp_path / "none")]) == 0
    assert (tmp_path / "none" / "results.md").read_text() == ""


def test_the_list_says_what_is_done(reproduce: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads" / "results.json").write_text(json.dumps(_results()))
    assert reproduce.main(["heads", "--list", "--output", str(tmp_path)]) == 0
    assert "2/3" in capsys.readouterr().out
