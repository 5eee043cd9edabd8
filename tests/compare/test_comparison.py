"""Comparisons: their content, how they continue after an interruption, and what they refuse."""

import json
import os
import shutil
import signal
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from compare.conftest import Results, failures, run_comparison, without_times
from synthesizer_lab.compare.tables import markdown_page
from synthesizer_lab.errors import UserError
from synthesizer_lab.training.evaluation import evaluate_run
from training.conftest import SMALL
from training.runs import Kill, KilledError, die, silent, snapshot

SCORES = ("bleu", "chrf", "exact_match")
Start = Callable[..., Results]


@pytest.fixture
def start(corpus: Path, tmp_path: Path) -> Start:
    """Compare in tmp_path/out; returns the results."""

    def run(*args: Any, data: Path = corpus, **changes: Any) -> Results:
        return run_comparison(data, tmp_path / "out", *args, **changes)[0]

    return run


@pytest.fixture(scope="module")
def finished_folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("finished") / "out"
    run_comparison(corpus, output)
    return output


@pytest.fixture
def finished(finished_folder: Path, tmp_path: Path) -> Results:
    """The results of a finished comparison, a copy of which is at tmp_path/out."""
    shutil.copytree(finished_folder, tmp_path / "out")
    return dict(json.loads((finished_folder / "results.json").read_text(encoding="utf-8")))


def test_tests_truncate_as_training_does(corpus: Path, start: Start, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "long")
    for path in (tmp_path / "long").glob("valid.*"):
        path.rename(path.with_name(f"validation{path.suffix}"))
    for path in (tmp_path / "long").glob("test.*"):
        path.write_text(path.read_text(encoding="utf-8") + "one " * 99 + "\n", encoding="utf-8")
    more = {"overrides": [*SMALL, "on_long=truncate"], "splits": ["test", "validation"]}
    (run,) = (results := start("vanilla", data=tmp_path / "long", **more))["runs"]
    assert {split: test["truncated"] for split, test in run["tests"].items()} == {"test": 1, "valid": 0}
    means = {name: results["rows"][0]["validation"][name]["mean"] for name in SCORES}
    assert means == {name: run["metrics"]["best"][name] for name in SCORES}


def test_a_comparison_has_runs_results_and_a_table(start: Start, tmp_path: Path) -> None:
    lines: list[str] = []
    results = start("vanilla,random+vanilla", (3, 1), report=lines.append, generation={"num_beams": 2})
    assert not failures(results)
    assert json.loads((tmp_path / "out/results.json").read_text(encoding="utf-8")) == results
    assert (tmp_path / "out/table.md").read_text(encoding="utf-8") == markdown_page(results)
    assert "\n# vanilla-seed-3\n" in (tmp_path / "out/vanilla/seed-3/README.md").read_text(encoding="utf-8")
    # Seed by seed, in the given order.
    order = [line.partition(": ")[2] for line in lines if line.startswith("run ")]
    assert order == [f"{row}, seed {seed}" for seed in (3, 1) for row in ("vanilla", "random+vanilla")]
    runs = {(run["row"], run["seed"]): run for run in results["runs"]}
    assert len({run["metrics"]["best"]["loss"] for run in runs.values()}) == 4
    for (label, seed), run in runs.items():
        folder = tmp_path / "out" / label / f"seed-{seed}"
        assert run["metrics"] == json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        assert run["validation"]["scores"] == {name: run["metrics"]["best"][name] for name in ("loss", *SCORES)}
        assert (folder / run["tests"]["test"]["predictions"]).read_text(encoding="utf-8").count("\n") == 6
    # The score is that of `synthesizer evaluate`, and the row has the mean of its runs.
    scored = evaluate_run(tmp_path / "out/random+vanilla/seed-1", num_beams=2, report=silent)
    test = runs["random+vanilla", 1]["tests"]["test"]
    assert test["scores"] == {name: scored[name] for name in SCORES}
    assert test["signatures"]["chrf"] == scored["chrf_signature"]
    values = [runs["random+vanilla", seed]["tests"]["test"]["scores"]["chrf"] for seed in (1, 3)]
    summary = results["rows"][1]["tests"]["test"]["chrf"]
    assert summary == pytest.approx({"mean": statistics.fmean(values), "sd": statistics.stdev(values), "n": 2})


def test_a_control_row_has_the_parameters_of_the_row_it_matches(start: Start) -> None:
    results = start("vanilla-control@num_heads=4,random+vanilla@num_heads=4,dense-control@match=dense+vanilla")
    control, mixture, dense = results["rows"]
    # One unit of d_ff is 2 d_model + 1 parameters in each of two layers.
    assert abs(control["parameters"] - mixture["parameters"]) <= 33
    assert control["d_ff"] > 32
    assert dense["match"] == "dense+vanilla"
    for run, row in zip(results["runs"], results["rows"], strict=True):
        assert run["metrics"]["parameters"] == row["parameters"]
        assert run["settings"]["model"]["d_ff"] == (row["d_ff"] or 32)


def test_killed_and_continued_equals_unbroken(start: Start, finished_folder: Path) -> None:
    unbroken = json.loads((finished_folder / "results.json").read_text(encoding="utf-8"))
    with pytest.raises(KilledError):
        start(callbacks=[Kill(4, die)])
    assert without_times(start()) == without_times(unbroken)


def test_a_signal_stops_the_comparison_and_it_continues(corpus: Path, tmp_path: Path) -> None:
    out, lines = tmp_path / "out", list[str]()
    results, received = run_comparison(corpus, out, callbacks=[Kill(3, lambda: os.kill(os.getpid(), signal.SIGINT))])
    assert received == signal.SIGINT
    assert [run["status"] for run in results["runs"]] == ["pending", "pending"]
    assert not (out / "random").exists()
    results, received = run_comparison(corpus, out, report=lines.append)
    assert received is None
    assert [run["status"] for run in results["runs"]] == ["finished", "finished"]
    assert any("from checkpoint-3" in line for line in lines)


def test_finished_runs_are_kept_and_scored_once(start: Start, finished: Results, tmp_path: Path) -> None:
    # A score that is made up would not survive another scoring.
    finished["runs"][0]["tests"]["test"]["scores"]["bleu"] = 99.0
    (tmp_path / "out/results.json").write_text(json.dumps(finished), encoding="utf-8")
    lines: list[str] = []
    assert start(report=lines.append)["runs"] == finished["runs"]
    # Other settings of generation are other scores of the same runs.
    again = start(generation={"num_beams": 2}, report=lines.append)
    assert again["generation"]["num_beams"] == 2
    assert again["runs"][0]["tests"]["test"]["scores"]["bleu"] < 99
    assert not [line for line in lines if line.startswith("run ")]


def test_rows_seeds_and_splits_can_be_added(start: Start, finished: Results, tmp_path: Path) -> None:
    results = start("dense,vanilla", (0, 5), splits=["test", "valid"])
    expected = [("vanilla", [0, 5]), ("random", [0]), ("dense", [0, 5])]
    assert [(row["row"], row["seeds"]) for row in results["rows"]] == expected
    assert all({*run["tests"]} == {"test", "valid"} for run in results["runs"])
    by_key = {(run["row"], run["seed"]): run for run in results["runs"]}
    for run in finished["runs"]:
        now = by_key[run["row"], run["seed"]]
        assert (now["tests"]["test"], now["date"]) == (run["tests"]["test"], run["date"])
    # A row is removed by removing its folder.
    shutil.rmtree(tmp_path / "out/random")
    assert [row["row"] for row in start("vanilla")["rows"]] == ["vanilla", "dense"]


@pytest.mark.slow
def test_runs_in_several_processes_stop_together_and_have_the_same_results(corpus: Path, tmp_path: Path) -> None:
    def stop(line: str) -> None:
        """Ctrl-C when the first of three runs has ended."""
        if "has ended" in line and not stopped:
            stopped.append(line)
            os.kill(os.getpid(), signal.SIGINT)

    stopped: list[str] = []
    output, rows = tmp_path / "jobs", "vanilla,random,dense"
    results, received = run_comparison(corpus, output, rows, jobs=2, report=stop)
    assert received == signal.SIGINT
    assert {run["status"] for run in results["runs"]} == {"finished", "pending"}
    results, received = run_comparison(corpus, output, rows, jobs=2)
    assert received is None
    assert without_times(results) == without_times(run_comparison(corpus, tmp_path / "one", rows)[0])


def test_a_failed_run_has_its_reason_and_the_others_continue(start: Start, tmp_path: Path) -> None:
    lines: list[str] = []
    results = start("vanilla@learning_rate=4e9,vanilla", report=lines.append)
    (diverged,) = failures(results)
    assert (diverged["row"], "diverged" in diverged["reason"]) == ("vanilla@learning_rate=4e9", True)
    assert any(line.startswith("vanilla@learning_rate=4e9, seed 0 failed: ") for line in lines)
    assert [(row["finished"], row["failed"]) for row in results["rows"]] == [([], [0]), ([0], [])]
    assert "| vanilla@learning_rate=4e9 | 0 of 1 |" in (tmp_path / "out/table.md").read_text(encoding="utf-8")
    assert failures(start("vanilla")) == [diverged]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"max_steps": 6}}, r"max_steps 6 \(there 4\)"),
        ({"overrides": [*SMALL, "random.std=2"]}, r"synthesizer_options .*2.* \(there None\)"),
        ({"training": {"max_steps": 4, "on_long": "drop"}}, r"on_long 'drop' \(there 'error'\)"),
        ({"rows": "random+vanilla-control@match=vanilla"}, "d_ff=1"),
        ({"splits": ["nowhere"]}, "nowhere"),
        ({"overrides": [*SMALL, "sharding=fsdp"]}, "one process"),
        ({"rows": "vanilla@sharding=fsdp"}, "one process"),
    ],
)
@pytest.mark.usefixtures("finished")
def test_a_refused_comparison_changes_nothing(
    start: Start, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    before = snapshot(tmp_path / "out")
    with pytest.raises(UserError, match=message):
        start(**change)
    assert snapshot(tmp_path / "out") == before


@pytest.mark.usefixtures("finished")
def test_other_data_tokenizers_and_budgets_are_refused(start: Start, corpus: Path, tmp_path: Path) -> None:
    data = shutil.copytree(corpus, tmp_path / "data")
    assert failures(start("vanilla", data=data)) == []
    (data / "train.en").write_text((corpus / "train.en").read_text(encoding="utf-8").upper(), encoding="utf-8")
    with pytest.raises(UserError, match=r"train.source_sha256 '\w+' \(there '\w+'\)"):
        start("vanilla", data=data)
    tokenizer = tmp_path / "out/random/seed-0/tokenizer.json"
    tokenizer.write_text(
        tokenizer.read_text(encoding="utf-8").replace('"ignore_merges": false', '"ignore_merges": true')
    )
    (failure,) = failures(start("vanilla"))
    assert (failure["row"], "tokenizer" in failure["reason"], *failure["tests"]) == ("random", True, "test")


def test_folders_with_other_content_or_in_use(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with FileLock(out / ".lock"), pytest.raises(UserError, match="another process"):
        start()
    (out / "thesis.tex").write_text("years", encoding="utf-8")
    with pytest.raises(UserError, match="no comparison"):
        start()
    (out / "results.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"results\.json"):
        start()
    assert (out / "thesis.tex").read_text(encoding="utf-8") == "years"
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="torchrun"):
        start()
