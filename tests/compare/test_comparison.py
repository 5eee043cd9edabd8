"""Comparisons: what they hold, that they go on where they were interrupted, what they refuse."""

import gc
import json
import os
import shutil
import signal
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from synthetic_attention.compare import work
from synthetic_attention.compare.plan import Scoring, Shared
from synthetic_attention.compare.rows import parse_rows
from synthetic_attention.compare.table import markdown_table
from synthetic_attention.compare.work import Ending, compare
from synthetic_attention.data.tokenizer import train_tokenizer
from synthetic_attention.metrics.embeddings import OWN_VECTORS
from synthetic_attention.tasks import UserError
from synthetic_attention.tasks.dialogue import Dialogue
from synthetic_attention.tasks.seq2seq import TextPairs
from synthetic_attention.tasks.translation import Translation
from synthetic_attention.training.evaluation import evaluate_run
from synthetic_attention.training.run_folder import RunFolder
from synthetic_attention.training.session import resume_run
from synthetic_attention.training.trainer import SynthesizerTrainer
from training.conftest import SMALL
from training.runs import Kill, KilledError, die, silent, snapshot

ROWS = "vanilla,random"
SCORES = ("bleu", "chrf", "exact_match")
Start = Callable[..., Ending]


def _compare(data: Path, output: Path, rows: str = ROWS, seeds: tuple[int, ...] = (0,), **options: Any) -> Ending:
    """By default two rows of one seed, 4 steps each, scored greedily."""
    shared = {"task": Translation("en", "de"), "data": data, "preset": "tiny", "overrides": SMALL, "steps": 4}
    scoring = {"search": {"beams": 1}}
    for key in [*options]:
        if key in shared or key == "long":
            shared[key] = options.pop(key)
        elif key in ("splits", "search", "truncate"):
            scoring[key] = options.pop(key)
    return compare(
        shared=Shared(**shared),
        scoring=Scoring(**scoring),
        rows=parse_rows([rows]),
        seeds=seeds,
        output=output,
        render=markdown_table,
        **{"report": silent, **options},
    )


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walking through all objects of the tests' process takes as long as a run of these."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def start(corpus: Path, tmp_path: Path) -> Start:
    """Compare in tmp_path/NAME."""

    def run(*args: Any, name: str = "out", **options: Any) -> Ending:
        return _compare(options.pop("data", corpus), tmp_path / name, *args, **options)

    return run


@pytest.fixture(scope="module")
def finished_folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("finished") / "out"
    _compare(corpus, output)
    return output


@pytest.fixture
def finished(finished_folder: Path, tmp_path: Path) -> dict[str, Any]:
    """The results of a finished comparison, a copy of which is at tmp_path/out."""
    shutil.copytree(finished_folder, tmp_path / "out")
    return dict(json.loads((finished_folder / "results.json").read_text(encoding="utf-8")))


def _without_times(results: dict[str, Any]) -> dict[str, Any]:
    """Results without what may differ between two equal runs: times, dates, and how often they were called."""
    copy = json.loads(json.dumps(results))
    for row in copy["rows"]:
        del row["tokens_per_second"], row["minutes"]
    for run in copy["runs"]:
        for name in ("date", "commands"):
            run.pop(name, None)
        for name in ("tokens_per_second", "minutes"):
            run.get("metrics", {}).pop(name, None)
    return dict(copy)


def _nothing_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("start_run", "resume_run"):
        monkeypatch.setattr(work, name, lambda *args, **options: pytest.fail("a run was trained"))


def _nothing_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "evaluate_run", lambda *args, **options: pytest.fail("a run was scored"))


def test_a_comparison_holds_runs_results_and_a_table(start: Start, tmp_path: Path) -> None:
    lines: list[str] = []
    ending = start("vanilla,random+vanilla", (3, 1), report=lines.append, search={"beams": 2})
    assert (ending.signal, ending.failures) == (None, [])
    assert json.loads((tmp_path / "out/results.json").read_text(encoding="utf-8")) == ending.results
    table = (tmp_path / "out/table.md").read_text(encoding="utf-8")
    assert table == markdown_table(ending.results)
    # Seed by seed, in the order as given.
    order = [line.split(" (about")[0] for line in lines if line.startswith("run ")]
    assert order[0] == "run 1 of 4: vanilla, seed 3"
    assert order[2:] == ["run 3 of 4: vanilla, seed 1", "run 4 of 4: random+vanilla, seed 1"]
    assert any("left)" in line for line in lines)
    assert [row["row"] for row in ending.results["rows"]] == ["vanilla", "random+vanilla"]
    runs = {(run["row"], run["seed"]): run for run in ending.results["runs"]}
    assert len(runs) == 4
    for (label, seed), run in runs.items():
        folder = tmp_path / "out" / label / f"seed-{seed}"
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        assert run["metrics"] == metrics
        assert run["validation"]["scores"] == {name: metrics["best"][name] for name in ("loss", *SCORES)}
        assert (run["settings"]["seed"], run["settings"]["training"]["steps"]) == (seed, 4)
        assert run["versions"]["threads"] == torch.get_num_threads()
    # The score is that of `synthesizer evaluate`, the row that of its runs.
    scored = evaluate_run(tmp_path / "out/random+vanilla/seed-1", beams=2, report=silent)
    test = runs["random+vanilla", 1]["tests"]["test"]
    assert test["scores"] == {name: scored[name] for name in SCORES}
    assert test["signatures"]["chrf"] == scored["chrf_signature"]
    vanilla, mixture = ending.results["rows"]
    values = [runs["random+vanilla", seed]["tests"]["test"]["scores"]["chrf"] for seed in (1, 3)]
    summary = mixture["tests"]["test"]["chrf"]
    assert summary["mean"] == pytest.approx(statistics.fmean(values))
    assert summary["sd"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert mixture["difference"]["test"]["chrf"] == pytest.approx(
        summary["mean"] - vanilla["tests"]["test"]["chrf"]["mean"]
    )


def test_a_control_row_has_the_parameters_of_what_it_matches(start: Start) -> None:
    ending = start("vanilla-control@num_heads=4,random+vanilla@num_heads=4,dense-control@match=dense+vanilla")
    rows = {row["row"].split("@")[0]: row for row in ending.results["rows"]}
    control, mixture = rows["vanilla-control"], rows["random+vanilla"]
    # d_ff is counted in steps of 2 d_model + 1 for each of two layers.
    assert abs(control["parameters"] - mixture["parameters"]) <= 33
    assert control["d_ff"] > 32
    assert rows["dense-control"]["match"] == "dense+vanilla"
    for run in ending.results["runs"]:
        row = rows[run["row"].split("@")[0]]
        assert run["metrics"]["parameters"] == row["parameters"]
        assert run["settings"]["model"]["d_ff"] == (row["d_ff"] or 32)


def test_the_same_seeds_give_the_same_results_twice(start: Start) -> None:
    one, other = (start("random+vanilla", (0, 1), name=name) for name in ("one", "other"))
    assert _without_times(one.results) == _without_times(other.results)
    losses = [run["metrics"]["best"]["loss"] for run in one.results["runs"]]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("killed", ["in the first run", "in the second run", "while scoring", "while writing"])
def test_killed_and_continued_equals_unbroken(
    start: Start, finished_folder: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    unbroken = json.loads((finished_folder / "results.json").read_text(encoding="utf-8"))
    # It is called twice in each run.
    calls, place = 0, {"in the first run": 1, "in the second run": 3}.get(killed)
    validate = SynthesizerTrainer.write_metrics

    def die_in_validation(self: SynthesizerTrainer) -> Any:
        nonlocal calls
        calls += 1
        return die() if calls == place else validate(self)

    with monkeypatch.context() as patch:
        if place:
            # Its checkpoint is there, its validation is lost.
            patch.setattr(SynthesizerTrainer, "write_metrics", die_in_validation)
        elif killed == "while scoring":
            patch.setattr(work, "evaluate_run", lambda *args, **options: die())
        else:
            patch.setattr(work, "make_results", lambda plan, runs: die() if "metrics" in runs[0] else unbroken)
        with pytest.raises(KilledError):
            start()
    lines: list[str] = []
    ending = start(report=lines.append)
    assert any("from checkpoint-4" in line for line in lines) == bool(place)
    assert _without_times(ending.results) == _without_times(unbroken)


def test_a_signal_stops_with_a_checkpoint(start: Start, tmp_path: Path) -> None:
    ending = start(watch=lambda *_: Kill(3, lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert ending.signal == signal.SIGINT
    assert [run["status"] for run in ending.results["runs"]] == ["pending", "pending"]
    assert (tmp_path / "out/vanilla/seed-0/checkpoints/checkpoint-3").is_dir()
    lines: list[str] = []
    assert start(report=lines.append).signal is None
    assert any("from checkpoint-3" in line for line in lines)


def test_a_signal_that_comes_too_late_for_a_run_still_stops(start: Start, tmp_path: Path) -> None:
    class Late(Kill):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            pass

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == self.step:
                self.action()

    ending = start(watch=lambda *_: Late(4, lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert ending.signal == signal.SIGINT
    assert RunFolder(tmp_path / "out/vanilla/seed-0").read_metrics() is not None
    assert not (tmp_path / "out/random").exists()
    lines: list[str] = []
    assert [run["status"] for run in start(report=lines.append).results["runs"]] == ["finished", "finished"]
    assert not any("resuming" in line for line in lines)


def test_what_is_done_is_not_done_again(
    start: Start, finished: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = start().results
    assert _without_times(before) == _without_times(finished)
    _nothing_is_trained(monkeypatch)
    with monkeypatch.context() as patch:
        _nothing_is_scored(patch)
        assert start().results == before
    # Results that are damaged or gone are made again from the runs.
    (tmp_path / "out/results.json").write_text("{", encoding="utf-8")
    assert start().results == before
    # Another search is another score, and the runs stay.
    assert start(search={"beams": 2}).results["search"]["beams"] == 2


def test_what_could_not_be_computed_is_when_it_can_be(
    start: Start, finished: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _nothing_is_trained(monkeypatch)
    whole = json.loads(json.dumps(finished))
    for run in finished["runs"]:
        del run["tests"]["test"]["scores"]["chrf"]
        run["tests"]["test"]["not_computed"] = {"chrf": "needs Java"}
    (tmp_path / "out/results.json").write_text(json.dumps(finished), encoding="utf-8")
    with monkeypatch.context() as patch:
        _nothing_is_scored(patch)
        assert "| needs Java |" in markdown_table(start().results)
    monkeypatch.setattr(Translation, "can_compute", lambda self, score, why: (score, why) == ("chrf", "needs Java"))
    assert _without_times(start().results) == _without_times(whole)


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
    first = start("vanilla", task=Dialogue(max_reply_tokens=4), **options).results
    _nothing_is_trained(monkeypatch)
    other = start("vanilla", task=Dialogue(max_reply_tokens=4, vectors=str(vectors)), **options).results
    signatures = [results["runs"][0]["tests"]["valid"]["signatures"] for results in (first, other)]
    assert [found["embedding_greedy"] for found in signatures] == [OWN_VECTORS, "vectors:vectors.txt"]
    vectors.unlink()
    assert start("vanilla", task=Dialogue(max_reply_tokens=4), **options).results["runs"] == first["runs"]
    with pytest.raises(UserError, match=r"got options\.max_reply_tokens 5"):
        start("vanilla", task=Dialogue(max_reply_tokens=5), **options)


def test_rows_seeds_and_splits_can_be_added(
    start: Start, finished: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []
    original = work.start_run

    def note(**options: Any) -> Any:
        trained.append(f"{options['output'].parent.name}/{options['output'].name}")
        return original(**options)

    monkeypatch.setattr(work, "start_run", note)
    # All rows again, in another order: that is their order now.
    ending = start("dense,random,vanilla", splits=["test", "valid"])
    assert trained == ["dense/seed-0"]
    assert [row["row"] for row in ending.results["rows"]] == ["dense", "random", "vanilla"]
    assert {*ending.results["tests"]} == {"test", "valid"}
    assert all({*run["tests"]} == {"test", "valid"} for run in ending.results["runs"])
    by_row = {run["row"]: run for run in ending.results["runs"]}
    for run in finished["runs"]:
        assert by_row[run["row"]]["tests"]["test"] == run["tests"]["test"]
    # One row only: the others stay where they were.
    trained.clear()
    ending = start("vanilla", (0, 5))
    assert trained == ["vanilla/seed-5"]
    assert [(row["row"], row["seeds"]) for row in ending.results["rows"]] == [
        ("dense", [0]),
        ("random", [0]),
        ("vanilla", [0, 5]),
    ]


@pytest.mark.usefixtures("finished")
def test_scoring_goes_on_where_it_was_interrupted(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[str] = []

    def note(run: Path, **options: Any) -> Any:
        if len(scored) == 1:
            raise KeyboardInterrupt
        scored.append(run.parent.name)
        return evaluate_run(run, **options)

    _nothing_is_trained(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(work, "evaluate_run", note)
        with pytest.raises(KeyboardInterrupt):
            start(splits=["valid"])
        results = json.loads((tmp_path / "out/results.json").read_text(encoding="utf-8"))
        assert [(run["row"], run["status"]) for run in results["runs"]] == [
            ("vanilla", "finished"),
            ("random", "pending"),
        ]
        scored.clear()
        ending = start(splits=["valid"])
    assert scored == ["random"]
    assert all({*run["tests"]} == {"valid"} for run in ending.results["runs"])
    # Splits of other calls are not forgotten, by the interrupted one neither.
    _nothing_is_scored(monkeypatch)
    assert all({*run["tests"]} == {"test"} for run in start().results["runs"])
    assert all({*run["tests"]} == {"test", "valid"} for run in start(splits=["test", "valid"]).results["runs"])


@pytest.mark.usefixtures("finished")
def test_a_row_whose_folder_is_removed_is_gone(start: Start, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "out/random")
    assert [row["row"] for row in start("vanilla").results["rows"]] == ["vanilla"]


def test_a_run_that_fails_is_said_and_the_others_go_on(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    step, failing = SynthesizerTrainer.training_step, True

    def fail(self: SynthesizerTrainer, *args: Any) -> Any:
        if self.settings.synthesizer == "random" and failing:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(self, *args)

    monkeypatch.setattr(SynthesizerTrainer, "training_step", fail)
    lines: list[str] = []
    ending = start("random,vanilla@learning_rate=1e30,vanilla", report=lines.append)
    memory, diverged = ending.failures
    assert (memory["row"], diverged["row"]) == ("random", "vanilla@learning_rate=1e30")
    assert "out of memory; a new run needs less" in memory["reason"]
    assert "training diverged" in diverged["reason"]
    assert any(line.startswith("random, seed 0 failed: out of memory") for line in lines)
    rows = ending.results["rows"]
    assert [(row["finished"], row["failed"]) for row in rows] == [([], [0]), ([], [0]), ([0], [])]
    table = (tmp_path / "out/table.md").read_text(encoding="utf-8")
    assert "| random | 0 of 1 |" in table
    assert "random, seed 0 failed: out of memory" in table
    # With more memory, it is tried again.
    failing = False
    assert [run["row"] for run in start("random").failures] == []


def test_a_test_that_cannot_be_scored_is_a_failure_of_the_run(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise UserError("out of memory; use fewer --beams")

    with monkeypatch.context() as patch:
        patch.setattr(work, "evaluate_run", fail)
        assert [run["reason"] for run in start("vanilla").failures] == ["out of memory; use fewer --beams"]
    _nothing_is_trained(monkeypatch)
    assert start("vanilla").failures == []


@pytest.mark.usefixtures("finished")
def test_a_run_with_another_tokenizer_is_not_compared(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "out/vanilla/seed-0/tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["merges"].pop()
    path.write_text(json.dumps(content), encoding="utf-8")
    (failure,) = start("vanilla").failures
    assert "its tokenizer is not that of the other rows" in failure["reason"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 6}, r"was begun with other settings; got settings.training.steps 6 \(there 4\)"),
        ({"overrides": [*SMALL, "d_ff=64"]}, r"got settings.model.d_ff 64 \(there 32\)"),
        ({"overrides": [*SMALL, "random.std=2"]}, r"got settings.synthesizer_options.random.std 2 \(there None\)"),
        ({"long": "drop"}, r"got settings.training.long_sentences 'drop' \(there 'error'\)"),
        ({"splits": ["nowhere"]}, "no files nowhere"),
        ({"search": {"beams": 0}}, "got 0 beams"),
        ({"rows": "randm"}, "unknown synthesizer 'randm'"),
        ({"rows": "random@source=fr"}, r"got source in the row 'random@source=fr'; all rows are of one task"),
        ({"rows": "random@nonsense=1"}, "unknown setting 'nonsense'"),
        ({"rows": "random+vanilla-control@match=vanilla"}, "with d_ff=1 it has .* parameters already"),
        ({"seeds": (-1,)}, "got seed -1"),
    ],
)
@pytest.mark.usefixtures("finished")
def test_what_cannot_be_compared_changes_nothing(
    start: Start, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    before = snapshot(tmp_path / "out")
    with pytest.raises(UserError, match=message):
        start(**{"rows": ROWS, **change})
    assert snapshot(tmp_path / "out") == before


@pytest.mark.usefixtures("finished")
def test_a_comparison_goes_on_though_there_are_settings_that_it_did_not_know(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "out/comparison.yaml", *tmp_path.glob("out/*/seed-0/run.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if not line.strip().startswith(("optimizer:", "constant_steps:", "column:"))]
        assert len(kept) == len(lines) - 3
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    _nothing_is_trained(monkeypatch)
    assert start().failures == []
    with pytest.raises(UserError, match=r"got settings.training.optimizer 'adafactor' \(there 'adamw'\)"):
        start(overrides=[*SMALL, "optimizer=adafactor"])


def test_what_cannot_be_begun_leaves_nothing(start: Start, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no files nowhere"):
        start(splits=["nowhere"])
    assert [*tmp_path.iterdir()] == []


def test_a_split_whose_answers_are_hidden_is_refused_first(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translation, "can_score", lambda self, split: split.name != "test")
    with pytest.raises(UserError, match=r"test: got --split test, whose answers are hidden; .* --split valid"):
        start(truncate=True)
    assert [*tmp_path.iterdir()] == []


def test_tests_over_the_maximum_length(start: Start, corpus: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(corpus, data)
    task, tokenizer = Translation("en", "de"), train_tokenizer(["one eins"], 262, 64)
    pairs = TextPairs("test", ["one", "one " * 99, "one"], ["eins " * 99, "eins", "eins"])
    # References are not read by the model.
    assert task.too_long(pairs, tokenizer, 64) == 1
    for language, word in (("en", "one "), ("de", "eins ")):
        with (data / f"test.{language}").open("a", encoding="utf-8") as file:
            file.write(99 * word + "\n")
    with pytest.raises(UserError, match=r"test: 1 of 7 pairs are longer than the maximum of 64 tokens; .* --on-long"):
        start("vanilla", data=data)
    assert not (tmp_path / "out").exists()
    ending = start("vanilla", data=data, truncate=True)
    (run,) = ending.results["runs"]
    assert (run["tests"]["test"]["examples"], run["tests"]["test"]["truncated"]) == (7, 1)
    assert "test: 1 of 7 inputs over the maximum length truncated." in markdown_table(ending.results)
    # Divided instead: scored again, not trained again.
    ending = start("vanilla", data=data, search={"beams": 1, "split_long": True})
    (run,) = ending.results["runs"]
    assert (run["tests"]["test"]["truncated"], run["tests"]["test"]["divided"]) == (0, 1)


def test_torchrun_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="compare works in one process"):
        start()


@pytest.mark.usefixtures("finished")
def test_other_data_and_runs_that_went_on_are_refused(start: Start, corpus: Path, tmp_path: Path) -> None:
    moved, other = tmp_path / "moved", tmp_path / "other"
    shutil.copytree(corpus, moved)
    assert start("vanilla", data=moved).failures == []
    shutil.copytree(corpus, other)
    (other / "train.en").write_text((corpus / "train.en").read_text(encoding="utf-8").upper(), encoding="utf-8")
    with pytest.raises(UserError, match=r"got data.train.source_sha256 '\w+' \(there '\w+'\), tokenizer"):
        start("vanilla", data=other)
    resume_run(tmp_path / "out/vanilla/seed-0", steps=6, report=silent)
    with pytest.raises(UserError, match=r"seed-0 is not a run of this comparison; expected training.steps 4 \(there 6"):
        start("vanilla")


def test_folders_that_are_no_comparison_or_in_use(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years", encoding="utf-8")
    with pytest.raises(UserError, match="has files and is no comparison"):
        start()
    assert snapshot(out) == {Path("thesis.tex"): b"years"}
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="exists and is not a folder"):
        start(name="file")
    used = tmp_path / "used"
    used.mkdir()
    with FileLock(used / ".lock"), pytest.raises(UserError, match="another comparison is at work there"):
        start(name="used")
    (used / "comparison.yaml").write_text("rows: 3", encoding="utf-8")
    with pytest.raises(UserError, match="not what `synthesizer compare` writes"):
        start(name="used")


@pytest.mark.usefixtures("finished")
def test_what_a_kill_left_is_removed(start: Start, tmp_path: Path) -> None:
    for name in (".partial-1", "vanilla/.partial-seed-0-1"):
        (tmp_path / "out" / name).mkdir()
    start("vanilla")
    assert not [*(tmp_path / "out").rglob(".partial*")]
    assert RunFolder(tmp_path / "out/vanilla/seed-0").has_model
