"""Comparisons: their content, how they continue after an interruption, and what they refuse."""

import gc
import json
import os
import shutil
import signal
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from compare.conftest import Results, failures, run_comparison, without_times
from synthesizer_lab.compare import run as runner
from synthesizer_lab.compare.results import markdown_page
from synthesizer_lab.errors import UserError
from synthesizer_lab.metrics.embeddings import OWN_VECTORS
from synthesizer_lab.metrics.text import NEEDS_JAVA
from synthesizer_lab.tasks.dialogue import Dialogue
from synthesizer_lab.tasks.seq2seq import TextPairs
from synthesizer_lab.training.evaluation import evaluate_run
from synthesizer_lab.training.run import resume_run
from synthesizer_lab.training.run_folder import RunFolder
from synthesizer_lab.training.trainer import SynthesizerTrainer
from training.conftest import SMALL
from training.runs import Kill, KilledError, die, silent, snapshot

SCORES = ("bleu", "chrf", "exact_match")
Start = Callable[..., Results]


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting the garbage of the whole test process takes as long as a run of these."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def start(corpus: Path, tmp_path: Path) -> Start:
    """Compare in tmp_path/NAME; returns the results."""

    def run(*args: Any, name: str = "out", data: Path = corpus, **changes: Any) -> Results:
        return run_comparison(data, tmp_path / name, *args, **changes)[0]

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


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("start_run", "resume_run"):
        monkeypatch.setattr(runner, name, lambda *args, **options: pytest.fail("a run was trained"))


def _no_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "evaluate_run", lambda *args, **options: pytest.fail("a run was scored"))


def test_a_comparison_has_runs_results_and_a_table(start: Start, tmp_path: Path) -> None:
    lines: list[str] = []
    results = start("vanilla,random+vanilla", (3, 1), report=lines.append, generation={"num_beams": 2})
    assert not failures(results)
    assert json.loads((tmp_path / "out/results.json").read_text(encoding="utf-8")) == results
    assert (tmp_path / "out/table.md").read_text(encoding="utf-8") == markdown_page(results)
    # Seed by seed, in the given order.
    order = [line for line in lines if line.startswith("run ")]
    assert order[0] == "run 1 of 4: vanilla, seed 3"
    assert order[2:] == ["run 3 of 4: vanilla, seed 1", "run 4 of 4: random+vanilla, seed 1"]
    runs = {(run["row"], run["seed"]): run for run in results["runs"]}
    assert len({run["metrics"]["best"]["loss"] for run in runs.values()}) == 4
    for (label, seed), run in runs.items():
        folder = tmp_path / "out" / label / f"seed-{seed}"
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        assert run["metrics"] == metrics
        assert run["validation"]["scores"] == {name: metrics["best"][name] for name in ("loss", *SCORES)}
        training = run["settings"]["training"]
        assert (training["seed"], training["max_steps"]) == (seed, 4)
        assert run["versions"]["threads"] == torch.get_num_threads()
        assert (folder / run["tests"]["test"]["predictions"]).read_text(encoding="utf-8").count("\n") == 6
    # The score is that of `synthesizer evaluate`, and the row has the mean of its runs.
    scored = evaluate_run(tmp_path / "out/random+vanilla/seed-1", num_beams=2, report=silent)
    test = runs["random+vanilla", 1]["tests"]["test"]
    assert test["scores"] == {name: scored[name] for name in SCORES}
    assert test["signatures"]["chrf"] == scored["chrf_signature"]
    mixture = results["rows"][1]
    values = [runs["random+vanilla", seed]["tests"]["test"]["scores"]["chrf"] for seed in (1, 3)]
    summary = mixture["tests"]["test"]["chrf"]
    assert summary["mean"] == pytest.approx(statistics.fmean(values))
    assert summary["sd"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)


def test_a_control_row_has_the_parameters_of_the_row_it_matches(start: Start) -> None:
    results = start("vanilla-control@num_heads=4,random+vanilla@num_heads=4,dense-control@match=dense+vanilla")
    rows = {row["row"].split("@")[0]: row for row in results["rows"]}
    control, mixture = rows["vanilla-control"], rows["random+vanilla"]
    # One unit of d_ff is 2 d_model + 1 parameters in each of two layers.
    assert abs(control["parameters"] - mixture["parameters"]) <= 33
    assert control["d_ff"] > 32
    assert rows["dense-control"]["match"] == "dense+vanilla"
    for run in results["runs"]:
        row = rows[run["row"].split("@")[0]]
        assert run["metrics"]["parameters"] == row["parameters"]
        assert run["settings"]["model"]["d_ff"] == (row["d_ff"] or 32)


@pytest.mark.parametrize("killed", ["in the first run", "in the second run", "while scoring", "while writing"])
def test_killed_and_continued_equals_unbroken(
    start: Start, finished_folder: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    unbroken = json.loads((finished_folder / "results.json").read_text(encoding="utf-8"))
    # `write_metrics` is called twice in each run.
    calls, place = 0, {"in the first run": 1, "in the second run": 3}.get(killed)
    write_metrics = SynthesizerTrainer.write_metrics

    def die_in_validation(self: SynthesizerTrainer) -> Any:
        nonlocal calls
        calls += 1
        return die() if calls == place else write_metrics(self)

    with monkeypatch.context() as patch:
        if place:
            # The validation is lost, and the steps before it.
            patch.setattr(SynthesizerTrainer, "write_metrics", die_in_validation)
        elif killed == "while scoring":
            patch.setattr(runner, "evaluate_run", lambda *args, **options: die())
        else:
            patch.setattr(runner, "make_results", lambda plan, runs: die() if "metrics" in runs[0] else unbroken)
        with pytest.raises(KilledError):
            start()
    lines: list[str] = []
    results = start(report=lines.append)
    assert any("from the start: it has no checkpoint" in line for line in lines) == bool(place)
    assert without_times(results) == without_times(unbroken)


class _SignalAtValidation(Kill):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        pass

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.action()


@pytest.mark.parametrize(("kind", "step", "is_finished"), [(Kill, 3, False), (_SignalAtValidation, 4, True)])
def test_a_signal_stops_the_comparison_and_it_continues(
    corpus: Path, tmp_path: Path, kind: type[Kill], step: int, is_finished: bool
) -> None:
    out, lines = tmp_path / "out", list[str]()

    callback = kind(step, lambda: os.kill(os.getpid(), signal.SIGINT))
    results, received = run_comparison(corpus, out, callbacks=[callback])
    assert received == signal.SIGINT
    assert [run["status"] for run in results["runs"]] == ["pending", "pending"]
    assert (RunFolder(out / "vanilla/seed-0").read_metrics() is not None) == is_finished
    assert not (out / "random").exists()
    results, received = run_comparison(corpus, out, report=lines.append)
    assert received is None
    assert [run["status"] for run in results["runs"]] == ["finished", "finished"]
    assert any("from checkpoint-3" in line for line in lines) != is_finished


@pytest.mark.usefixtures("no_training")
def test_finished_runs_are_kept_and_scored_once(
    start: Start, finished: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        _no_scoring(patch)
        before = start()
    assert without_times(before) == without_times(finished)
    # What a killed process left is removed, and damaged results are made again from the runs.
    for name in (".partial-1", "vanilla/.partial-seed-0-1"):
        (tmp_path / "out" / name).mkdir()
        (tmp_path / "out" / name / ".lock").touch()
    (tmp_path / "out/results.json").write_text("{", encoding="utf-8")
    assert start() == before
    assert not [*(tmp_path / "out").rglob(".partial*")]
    # A score that could not be computed is computed when it can be.
    before["runs"][0]["tests"]["test"]["not_computed"] = {"chrf": NEEDS_JAVA}
    (tmp_path / "out/results.json").write_text(json.dumps(before), encoding="utf-8")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert start()["runs"] == before["runs"]
    monkeypatch.setattr(shutil, "which", lambda name: "java")
    assert start()["runs"] != before["runs"]
    # Other settings of generation are other scores of the same runs.
    assert start(generation={"num_beams": 2})["generation"]["num_beams"] == 2


def test_other_word_vectors_are_other_scores_of_the_same_runs(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, vectors = tmp_path / "data", tmp_path / "vectors.txt"
    data.mkdir()
    for split in ("train", "valid"):
        (data / f"{split}.txt").write_text("1 your persona: i grow beans .\n2 hi !\thello .\n", encoding="utf-8")
    vectors.write_text("hello 1 0\n. 0 1\n", encoding="utf-8")
    monkeypatch.setenv("PATH", str(tmp_path))
    options = {"data": data, "splits": ["valid"]}
    first = start("vanilla", task=Dialogue(max_reply_tokens=4), **options)
    other = start("vanilla", task=Dialogue(max_reply_tokens=4, vectors=str(vectors)), **options)
    (one,), (two,) = first["runs"], other["runs"]
    assert one["date"] == two["date"]
    signatures = [run["tests"]["valid"]["signatures"] for run in (one, two)]
    assert [found["embedding_greedy"] for found in signatures] == [OWN_VECTORS, "vectors:vectors.txt"]
    with pytest.raises(UserError, match=r"max_reply_tokens 5 \(there 4\)"):
        start("vanilla", task=Dialogue(max_reply_tokens=5), **options)


def test_rows_seeds_and_splits_can_be_added(start: Start, finished: Results, tmp_path: Path) -> None:
    dates = {run["row"]: run["date"] for run in finished["runs"]}
    # All rows again: the order is the new one.
    results = start("dense,random,vanilla", splits=["test", "valid"])
    assert [row["row"] for row in results["rows"]] == ["dense", "random", "vanilla"]
    assert all({*run["tests"]} == {"test", "valid"} for run in results["runs"])
    by_row = {run["row"]: run for run in results["runs"]}
    for run in finished["runs"]:
        assert by_row[run["row"]]["tests"]["test"] == run["tests"]["test"]
        assert by_row[run["row"]]["date"] == dates[run["row"]]
    # One row only: the others keep their places.
    results = start("vanilla", (0, 5))
    assert [(row["row"], row["seeds"]) for row in results["rows"]] == [
        ("dense", [0]),
        ("random", [0]),
        ("vanilla", [0, 5]),
    ]
    # A row is removed by removing its folder.
    shutil.rmtree(tmp_path / "out/random")
    assert [row["row"] for row in start("vanilla")["rows"]] == ["dense", "vanilla"]


@pytest.mark.usefixtures("finished", "no_training")
def test_scoring_continues_after_an_interruption(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[str] = []

    def note(run: Path, **options: Any) -> Any:
        if len(scored) == 1:
            raise KeyboardInterrupt
        scored.append(run.parent.name)
        return evaluate_run(run, **options)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "evaluate_run", note)
        with pytest.raises(KeyboardInterrupt):
            start(splits=["valid"])
        results = json.loads((tmp_path / "out/results.json").read_text(encoding="utf-8"))
        assert [run["status"] for run in results["runs"]] == ["finished", "pending"]
        scored.clear()
        start(splits=["valid"])
    assert scored == ["random"]
    # The scores of other splits are not forgotten.
    _no_scoring(monkeypatch)
    for splits in (["test"], ["test", "valid"]):
        results = start(splits=splits)
        assert {*results["tests"]} == {*results["rows"][1]["tests"]} == {*splits}


@pytest.mark.slow
def test_runs_in_several_processes_stop_together_and_have_the_same_results(corpus: Path, tmp_path: Path) -> None:
    def stop(line: str) -> None:
        """Ctrl-C when the first of three runs has ended, and is to be scored."""
        if "has ended" in line and not stopped:
            stopped.append(line)
            os.kill(os.getpid(), signal.SIGINT)

    stopped: list[str] = []
    output, rows = tmp_path / "jobs", "vanilla,random,dense"
    results, received = run_comparison(corpus, output, rows, jobs=2, report=stop)
    assert received == signal.SIGINT
    assert {run["status"] for run in results["runs"]} == {"pending"}
    results, received = run_comparison(corpus, output, rows, jobs=2)
    assert received is None
    assert without_times(results) == without_times(run_comparison(corpus, tmp_path / "one", rows)[0])


def test_a_failed_run_has_its_reason_and_the_others_continue(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    step, is_failing = SynthesizerTrainer.training_step, True

    def fail(self: SynthesizerTrainer, *args: Any) -> Any:
        if self.inputs.settings.synthesizer == "random" and is_failing:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(self, *args)

    monkeypatch.setattr(SynthesizerTrainer, "training_step", fail)
    lines: list[str] = []
    results = start("random,vanilla@learning_rate=4e9,vanilla", report=lines.append)
    memory, diverged = failures(results)
    assert (memory["row"], diverged["row"]) == ("random", "vanilla@learning_rate=4e9")
    assert "out of memory" in memory["reason"]
    assert "diverged" in diverged["reason"]
    assert any(line.startswith("random, seed 0 failed: out of memory") for line in lines)
    assert [(row["finished"], row["failed"]) for row in results["rows"]] == [([], [0]), ([], [0]), ([0], [])]
    table = (tmp_path / "out/table.md").read_text(encoding="utf-8")
    assert "| random | 0 of 1 |" in table
    assert "random, seed 0 failed: out of memory" in table
    # The next call tries it again.
    is_failing = False
    assert [run["row"] for run in failures(start("random"))] == []


@pytest.mark.usefixtures("finished")
def test_a_failed_test_is_a_failure_of_the_run(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise UserError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "evaluate_run", fail)
        assert [run["reason"] for run in failures(start("vanilla", splits=["valid"]))] == ["out of memory"] * 2
    assert failures(start("vanilla", splits=["valid"])) == []
    path = tmp_path / "out/vanilla/seed-0/tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["merges"].pop()
    path.write_text(json.dumps(content), encoding="utf-8")
    (failure,) = failures(start("vanilla"))
    assert "tokenizer" in failure["reason"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"max_steps": 6}}, r"max_steps 6 \(there 4\)"),
        ({"overrides": [*SMALL, "random.std=2"]}, r"synthesizer_options .*2.* \(there \{\}\)"),
        ({"on_long": "drop"}, r"on_long 'drop' \(there 'error'\)"),
        ({"generation": {"num_beams": 0}}, "num_beams=0"),
        ({"rows": "random@source=fr"}, "source.*'random@source=fr'"),
        ({"rows": "random+vanilla-control@match=vanilla"}, "d_ff=1"),
        ({"seeds": (-1,)}, "seed=-1"),
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


def test_a_comparison_that_cannot_start_leaves_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="nowhere"):
        start(splits=["nowhere"])
    with monkeypatch.context() as patch:
        patch.setattr(TextPairs, "has_labels", False)
        with pytest.raises(UserError, match="--split test"):
            start()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="torchrun"):
        start()
    assert not (tmp_path / "out").exists()


def test_inputs_over_the_maximum_length(start: Start, corpus: Path, tmp_path: Path) -> None:
    data = shutil.copytree(corpus, tmp_path / "data")
    # The model does not read references, so their length does not matter.
    for language, texts in (("en", ("one", "one " * 99)), ("de", ("eins " * 99, "eins"))):
        with (data / f"test.{language}").open("a", encoding="utf-8") as file:
            file.writelines(f"{text}\n" for text in texts)
    with pytest.raises(UserError, match=r"test: 1 of 8 .* 64 .*--on-long"):
        start("vanilla", data=data)
    assert not (tmp_path / "out").exists()
    (run,) = start("vanilla", data=data, on_long="truncate")["runs"]
    assert run["tests"]["test"]["truncated"] == 1


@pytest.mark.usefixtures("finished")
def test_other_data_and_runs_with_another_budget_are_refused(start: Start, corpus: Path, tmp_path: Path) -> None:
    moved, other = tmp_path / "moved", tmp_path / "other"
    shutil.copytree(corpus, moved)
    assert failures(start("vanilla", data=moved)) == []
    shutil.copytree(corpus, other)
    (other / "train.en").write_text((corpus / "train.en").read_text(encoding="utf-8").upper(), encoding="utf-8")
    with pytest.raises(UserError, match=r"train.source_sha256 '\w+' \(there '\w+'\)"):
        start("vanilla", data=other)
    resume_run(tmp_path / "out/vanilla/seed-0", max_steps=6, report=silent)
    with pytest.raises(UserError, match=r"seed-0 .*max_steps 4 \(there 6\)"):
        start("vanilla")


def test_a_comparison_that_came_meanwhile_is_kept(
    start: Start, finished_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(lock: Path, refusal: Exception) -> Any:
        return nullcontext(shutil.copytree(finished_folder, lock.parent, dirs_exist_ok=True))

    monkeypatch.setattr(runner, "lock_file", finish)
    with pytest.raises(UserError, match="another process changed this comparison"):
        start("dense")
    assert snapshot(tmp_path / "out") == snapshot(finished_folder)


def test_folders_with_other_content_or_in_use(start: Start, tmp_path: Path) -> None:
    out, used = tmp_path / "out", tmp_path / "used"
    out.mkdir()
    (out / "thesis.tex").write_text("years", encoding="utf-8")
    with pytest.raises(UserError, match="no comparison"):
        start()
    assert snapshot(out) == {Path("thesis.tex"): b"years"}
    used.mkdir()
    with FileLock(used / ".lock"), pytest.raises(UserError, match="another process"):
        start(name="used")
    (used / "comparison.yaml").write_text("rows: 3", encoding="utf-8")
    with pytest.raises(UserError, match=r"comparison\.yaml"):
        start(name="used")
