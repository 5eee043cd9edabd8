"""GLUE and SuperGLUE as one task from text to text: files, the mixture, validation, scores, predictions."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synthetic_attention.data.batching import Share
from synthetic_attention.data.tokenizer import decode, encode
from synthetic_attention.metrics.averages import BENCHMARK_SCORES
from synthetic_attention.tasks import UserError
from synthetic_attention.tasks.benchmark_examples import MixedPairs, ScoredPairs, longest_target
from synthetic_attention.tasks.benchmark_scores import SCORE_LABELS, prediction_lines, suite_scores
from synthetic_attention.tasks.benchmark_split import BenchmarkSplit
from synthetic_attention.tasks.benchmark_suite import BenchmarkSuite
from synthetic_attention.tasks.glue import Glue
from synthetic_attention.tasks.superglue import SuperGlue
from synthetic_attention.tasks.text_to_text import BENCHMARKS
from synthetic_attention.training.batching import TokenBatchSampler
from tasks.benchmark_files import HEADERS, write_glue, write_superglue


@pytest.fixture
def metrics() -> Any:
    """scikit-learn's; what needs them is not tested where the extra "glue" is not installed."""
    pytest.importorskip("scipy.stats", reason="scipy is not installed")
    return pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


@pytest.fixture
def both(tmp_path: Path) -> Path:
    write_glue(tmp_path / "glue")
    write_superglue(tmp_path / "superglue")
    return tmp_path


def _examples(
    task: BenchmarkSuite, split: BenchmarkSplit, training: bool = False, maximum: int = 999, **more: Any
) -> Any:
    return task.examples(split, task.tokenizer(split, 400, maximum), maximum, training=training, **more)


def test_all_tasks_that_are_there_are_read(both: Path) -> None:
    train, valid = (Glue().read(both / "glue", split) for split in ("train", "valid"))
    assert train.counts() == {f"glue/{task}": 12 for task in HEADERS}
    singles = {f"glue/{task}": 6 for task in HEADERS if task != "mnli"}
    assert valid.counts() == singles | {"glue/mnli matched": 6, "glue/mnli mismatched": 7}
    assert Glue().read(both, "valid").fingerprint() == valid.fingerprint()
    answers = SuperGlue().read(both, "valid")
    assert answers.counts() == {
        f"superglue/{task}": 36 if task == "multirc" else 6 for task in BENCHMARK_SCORES["superglue"]
    }
    together = Glue(together=True).read(both, "train")
    expected = train.counts() | SuperGlue().read(both, "train").counts()
    assert together.counts() == {name: count for name, count in expected.items() if name != "glue/wnli"}
    assert together.fingerprint() == SuperGlue(together=True).read(both, "train").fingerprint()


def test_tasks_are_chosen_by_their_names(both: Path) -> None:
    def owners(task: BenchmarkSuite, split: str = "train", data: Path = both) -> list[str]:
        return list(dict.fromkeys(item.owner for item in task.read(data, split).items))

    assert owners(Glue(tasks=["rte", "SST-2", "rte"])) == ["glue/rte", "glue/sst2"]
    assert owners(Glue(tasks=["rte", "cb"], together=True)) == ["glue/rte", "superglue/rte", "superglue/cb"]
    assert owners(SuperGlue(tasks="superglue/rte", together=True)) == ["superglue/rte"]
    assert owners(Glue(tasks="sst2"), data=both / "glue" / "SST-2") == ["glue/sst2"]
    (item, *_) = Glue(tasks="mnli").read(both, "valid_mismatched").items
    assert item.subset == "mismatched"
    with pytest.raises(UserError, match=r"got unknown task 'sst'; expected some of: cola, sst2, .*wnli$"):
        Glue(tasks=["sst"])
    with pytest.raises(UserError, match=r"got unknown task 'glue/cb'; expected some of: glue/cola, .*superglue/wsc$"):
        Glue(tasks="glue/cb", together=True)


def test_what_cannot_be_trained_on_is_not_validated_on(tmp_path: Path) -> None:
    write_glue(tmp_path, tasks=("sst2", "rte", "qnli"))
    (tmp_path / "QNLI" / "train.tsv").unlink()
    assert {*Glue().read(tmp_path, "valid").counts()} == {"glue/sst2", "glue/rte"}
    with pytest.raises(UserError, match=r"QNLI: no file train\.tsv"):
        Glue(tasks=["qnli", "rte"]).read(tmp_path, "train")
    assert {*Glue(tasks="qnli").read(tmp_path, "valid").counts()} == {"glue/qnli"}
    # A folder of files to score has nothing to train on.
    for task in ("SST-2", "RTE"):
        (tmp_path / task / "train.tsv").unlink()
    assert {*Glue().read(tmp_path, "valid").counts()} == {"glue/sst2", "glue/rte", "glue/qnli"}
    assert Glue().can_score(Glue().read(tmp_path, "valid"))
    (tmp_path / "SST-2" / "test.tsv").write_text("index\tsentence\n0\tgood\n", encoding="utf-8")
    assert not Glue().can_score(Glue(tasks="sst2").read(tmp_path, "test"))
    (tmp_path / "SST-2" / "test.tsv").unlink()
    with pytest.raises(UserError, match="no task of superglue has files of split 'valid'; expected folders"):
        Glue(together=True).read(tmp_path, "valid")
    with pytest.raises(UserError, match="no task of glue has files of split 'test'"):
        Glue().read(tmp_path, "test")
    with pytest.raises(UserError, match="nowhere: no such folder"):
        Glue().read(tmp_path / "nowhere", "train")


def test_of_both_suites_wnli_is_left_out_and_rte_counts_once(tmp_path: Path) -> None:
    write_glue(tmp_path / "glue", train=15, tasks=("rte", "wnli", "sst2"))
    write_superglue(tmp_path / "superglue", train=15, tasks=("rte", "cb"))
    task = Glue(together=True)
    split = task.read(tmp_path, "train")
    assert {*split.counts()} == {"glue/rte", "glue/sst2", "superglue/rte", "superglue/cb"}
    assert {*Glue(together=True, tasks=["wnli", "cb"]).read(tmp_path, "train").counts()} == {
        "glue/wnli",
        "superglue/cb",
    }
    assert "glue/wnli" in Glue().read(tmp_path, "train").counts()
    examples = _examples(task, split, training=True)
    assert isinstance(examples, MixedPairs)
    halves = {"glue/rte": 8, "glue/sst2": 15, "superglue/rte": 8, "superglue/cb": 15}
    assert examples.mixture().counts() == halves
    first, second = (examples.mixture().epoch(number) for number in (0, 1))
    for epoch in (first, second):
        assert Counter(owner for owner, _ in epoch) == halves
    # In two passes all of RTE was there.
    assert {row for owner, row in [*first, *second] if owner == "glue/rte"} == {*range(15)}


def test_a_pass_of_training_has_each_task_in_proportion_up_to_the_cap(tmp_path: Path) -> None:
    write_glue(tmp_path, train=40, tasks=("sst2",))
    write_glue(tmp_path, train=15, tasks=("rte",))
    write_glue(tmp_path, train=4, tasks=("cola",))
    task = Glue(cap=20)
    split = task.read(tmp_path, "train")
    examples = _examples(task, split, training=True)
    assert isinstance(examples, MixedPairs)
    assert examples.mixture().rates() == {"glue/cola": 4 / 39, "glue/sst2": 20 / 39, "glue/rte": 15 / 39}
    seen: Counter[int] = Counter()
    for number in range(4):
        sampler = TokenBatchSampler(examples.lengths(), 99, seed=5, num_batches=1, draw=examples.draw)
        drawn = [index for batch in sampler.epoch(number) for index in batch]
        assert len({*drawn}) == len(drawn)
        counts = Counter(split.items[examples.rows[index]].owner for index in drawn)
        assert counts == {"glue/cola": 4, "glue/sst2": 20, "glue/rte": 15}
        # A pass is a function of seed and number.
        again = TokenBatchSampler(examples.lengths(), 99, seed=5, num_batches=1, draw=examples.draw)
        assert again.epoch(number) == sampler.epoch(number)
        seen.update(drawn)
    large = [index for index in seen if split.items[examples.rows[index]].owner == "glue/sst2"]
    # Of 40, 20 in a pass: each twice in four of them.
    assert {seen[index] for index in large} == {2}
    assert len(large) == 40
    tokens = examples.lengths().sum(axis=1)
    half = sum(tokens[index] for index in large) / 2
    assert examples.tokens_per_pass() == pytest.approx(tokens.sum() - half)
    assert (examples.examples_per_pass(), len(examples)) == (39, 59)
    plain = _examples(Glue(), split, training=True)
    assert sorted(plain.draw(np.random.default_rng(0))) == [*range(59)]
    assert plain.tokens_per_pass() == plain.lengths().sum()


def test_record_and_wsc_are_trained_on_what_is_right(both: Path) -> None:
    task = SuperGlue(tasks=["record", "wsc"])
    split = task.read(both, "train")
    tokenizer = task.tokenizer(split, 400, 999)
    examples = task.examples(split, tokenizer, 999, training=True)
    answers = decode(tokenizer, [ids.tolist() for ids in examples.targets])
    by_task = Counter(split.items[row].task for row in examples.rows)
    # Of twelve queries six have two answers; of twelve nouns six are right.
    assert by_task == {"record": 18, "wsc": 6}
    assert Counter(answers[:18]) == {"Ann": 12, "Bob": 6}
    assert all(split.items[row].example.label == 1 for row in examples.rows[18:])
    valid = task.examples(task.read(both, "valid"), tokenizer, 999)
    assert isinstance(valid, ScoredPairs)
    assert len(valid) == 12
    assert len(valid.right()) == 6 + 3


def test_validation_takes_some_of_each_task(both: Path) -> None:
    split = Glue(together=True).read(both, "valid")
    assert len(_examples(Glue(together=True), split)) == len(split)
    few = _examples(Glue(together=True, valid_examples=4), split)
    counts = Counter(f"{split.items[row].owner} {split.items[row].subset}".rstrip() for row in few.rows)
    # Of MultiRC whole questions, of three answers each.
    assert counts == {name: 3 if name == "superglue/multirc" else 4 for name in split.counts()}
    assert few.rows == sorted(few.rows)
    assert _examples(Glue(together=True, valid_examples=4), split).rows == few.rows


def test_a_long_prompt_loses_the_end_of_its_longest_text(tmp_path: Path) -> None:
    for stem in ("train", "val"):
        path = tmp_path / "BoolQ" / f"{stem}.jsonl"
        path.parent.mkdir(exist_ok=True)
        row = {"question": "is it so", "passage": " ".join(["straße"] * 60), "idx": 0, "label": True}
        path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    task = SuperGlue()
    split = task.read(tmp_path, "train")
    tokenizer = task.tokenizer(split, 300, 50)
    assert len(encode(tokenizer, split.sources)[0]) > 50
    for training in (False, True):
        examples = task.examples(split, tokenizer, 50, "truncate", training)
        assert examples.truncated == 1
        (text,) = decode(tokenizer, [ids.tolist() for ids in examples.sources])
        assert text.startswith("boolq passage: straße straße")
        assert text.endswith(" question: is it so")
        assert 40 < len(examples.sources[0]) <= 50
    with pytest.raises(UserError, match="train prompts: 1 of 1 lines are longer than the maximum of 50 tokens"):
        task.examples(split, tokenizer, 50)


def test_characters_of_several_tokens_are_cut_whole(tmp_path: Path) -> None:
    row = {"question": "is it so", "passage": "€" * 20, "idx": 0, "label": True}
    path = tmp_path / "BoolQ" / "train.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    task = SuperGlue()
    split = task.read(tmp_path, "train")
    # Nothing is merged: a euro sign is three tokens.
    tokenizer = task.tokenizer(split, 260, 999)
    (whole,) = encode(tokenizer, split.sources)
    for maximum, euros in ((len(whole) - 1, 19), (len(whole) - 3, 19), (len(whole) - 4, 18), (len(whole) - 58, 0)):
        examples = task.examples(split, tokenizer, maximum, "truncate")
        (text,) = decode(tokenizer, [ids.tolist() for ids in examples.sources])
        assert text.count("€") == euros
        assert text.endswith(" question: is it so")


def test_right_answers_score_everything_and_wrong_ones_nothing(both: Path, metrics: Any) -> None:
    names = [f"{suite}/{task}" for suite, tasks in BENCHMARKS.items() for task in tasks]
    items = Glue(together=True, tasks=names).read(both, "valid").items
    right = BenchmarkSplit.of("valid", items, 0).targets
    # What WSC calls wrong is right where another noun is written.
    right = [
        "nobody" if item.task == "wsc" and item.example.label == 0 else text
        for item, text in zip(items, right, strict=True)
    ]
    scores = suite_scores(items, right)
    assert scores["invalid"] == 0
    for suite, tasks in BENCHMARK_SCORES.items():
        for task, metrics in tasks.items():
            for metric in metrics:
                assert scores[f"{suite}_{task}_{metric}"] == pytest.approx(100, abs=0.2), (task, metric)
        assert scores[f"{suite}_missing"] == "none"
        assert scores[f"{suite}_average"] == pytest.approx(100, abs=0.1)
    assert scores["average"] == pytest.approx(100, abs=0.1)
    assert {name for name, value in scores.items() if isinstance(value, float)} >= {*SCORE_LABELS} - {"invalid"}

    nothing = suite_scores(items, ["no such word"] * len(items))
    # ReCoRD's and WSC's outputs are names: any is one.
    assert nothing["invalid"] == len(items) - 12
    assert nothing["superglue_wsc_accuracy"] == 50.0
    zeros = {"glue_sst2_accuracy", "glue_cola_matthews", "glue_qqp_f1", "superglue_cb_f1", "superglue_multirc_f1a"}
    zeros |= {"superglue_record_f1", "superglue_multirc_exact_match", "glue_mnli_accuracy_mismatched"}
    assert {nothing[name] for name in zeros} == {0.0}
    assert nothing["glue_mnli_invalid"] == 13
    empty = suite_scores(items, [""] * len(items))
    assert empty["superglue_wsc_accuracy"] == 0.0
    assert empty["superglue_wsc_invalid"] == sum(item.task == "wsc" for item in items)


def test_scores_are_those_of_each_task_over_the_tasks_there(both: Path, metrics: Any) -> None:
    items = Glue(tasks=["sst2", "mrpc", "mnli", "wnli"]).read(both, "valid").items
    words = {"sst2": "positive", "mrpc": "equivalent", "mnli": "neutral", "wnli": "entailment"}
    scores = suite_scores(items, [words[item.task] for item in items])
    golds = [item.example.label for item in items if item.task == "mrpc"]
    f1 = 100 * float(metrics.f1_score(golds, [1] * 6))
    assert scores["glue_mrpc_f1"] == pytest.approx(f1)
    assert scores["glue_mrpc_accuracy"] == 50.0
    mnli = (100 * 2 / 6 + 100 * 2 / 7) / 2
    assert scores["glue_average"] == scores["average"] == pytest.approx((50 + (f1 + 50) / 2 + mnli) / 3)
    assert scores["glue_average_signature"] == "mean of sst2, mrpc, mnli; missing: cola, stsb, qqp, qnli, rte"
    assert scores["glue_missing"] == "cola, stsb, qqp, qnli, rte"
    assert "superglue_average" not in scores
    wnli = suite_scores([item for item in items if item.task == "wnli"], ["entailment"] * 6)
    assert (wnli["average"], "glue_average" in wnli) == (50.0, False)
    assert wnli["average_signature"] == "mean of all scores"
    both_suites = Glue(together=True, tasks=["sst2", "mrpc"])
    items = both_suites.read(both, "valid").items
    scores = both_suites.score(["positive"] * len(items), items)
    assert scores["superglue_missing"] == "boolq, cb, copa, multirc, record, rte, wic, wsc"
    assert scores["average_signature"] == "mean of glue_average"


@pytest.mark.parametrize("name", ["dev", "validation"])
def test_splits_have_other_names(both: Path, name: str) -> None:
    task = Glue(together=True)
    split = task.read(both, name)
    assert split.fingerprint() == task.read(both, "valid").fingerprint()
    assert {item.subset for item in split.items if item.task == "mnli"} == {"matched", "mismatched"}


def test_prompts_are_not_divided() -> None:
    with pytest.raises(UserError, match=r"got --on-long split, but .* of glue .*; expected --on-long truncate"):
        Glue().search({"split_long": True})
    assert Glue().search({"split_long": False}).beams == 1


def test_the_folder_of_one_task_is_not_read_as_anothers(both: Path) -> None:
    assert len(Glue(tasks="sst2").read(both / "glue" / "SST-2", "valid")) == 6
    with pytest.raises(UserError, match=r"SST-2/CoLA: no file dev\.tsv"):
        Glue(tasks="cola").read(both / "glue" / "SST-2", "valid")


def test_predictions_can_be_scored_again(both: Path, metrics: Any) -> None:
    items = Glue(together=True).read(both, "valid").items
    texts = ["True", "entailment", "equivalent", "3.8", "Bob", "no word"]
    written = [texts[row % 6] for row in range(len(items))]
    lines = [json.loads(line) for line in prediction_lines(items, written).splitlines()]
    assert len(lines) == len(items)
    scores = suite_scores(items, written)
    assert sum(line["predicted"] is None for line in lines) == scores["invalid"]

    def of(task: str) -> list[dict[str, Any]]:
        return [line for line in lines if line["task"] == task]

    for owner in ("glue/sst2", "glue/rte", "superglue/wsc", "superglue/boolq", "superglue/wic"):
        right = [line["gold"] == line["predicted"] for line in of(owner)]
        assert [line["score"] for line in of(owner)] == right
        assert scores[f"{owner.replace('/', '_')}_accuracy"] == pytest.approx(100 * np.mean(right))
    assert {line["subset"] for line in of("glue/mnli")} == {"matched", "mismatched"}
    assert {line["score"] for line in of("glue/stsb")} == {None}
    assert of("glue/stsb")[0]["gold"] == 4.5
    assert scores["superglue_record_f1"] == pytest.approx(
        100 * np.mean([line["score"] for line in of("superglue/record")])
    )
    questions: dict[str, list[bool]] = {}
    for line in of("superglue/multirc"):
        questions.setdefault(line["group"], []).append(line["gold"] == line["predicted"])
    assert scores["superglue_multirc_exact_match"] == pytest.approx(100 * np.mean([all(q) for q in questions.values()]))


def test_hidden_labels_are_predicted_and_not_scored(tmp_path: Path) -> None:
    write_glue(tmp_path, tasks=("rte", "sst2"))
    rows = ["index\tsentence1\tsentence2", "0\tIt rains.\tIt is wet."]
    (tmp_path / "RTE" / "test.tsv").write_text("\n".join(rows), encoding="utf-8")
    split = Glue().read(tmp_path, "test")
    assert (split.targets, split.complete()) == ([""], [])
    (line,) = prediction_lines(split.items, ["entailment"]).splitlines()
    assert json.loads(line) == {
        "task": "glue/rte",
        "id": "0",
        "gold": None,
        "predicted": "entailment",
        "text": "entailment",
        "score": None,
    }
    assert suite_scores([], []) == {"invalid": 0}


def test_the_longest_target_bounds_what_is_written(both: Path) -> None:
    task = Glue(tasks="rte")
    split = task.read(both, "valid")
    tokenizer = task.tokenizer(split, 300, 99)
    assert longest_target(split, tokenizer) == len(encode(tokenizer, ["not_entailment"])[0])
    names = SuperGlue(tasks="wsc").read(both, "valid")
    assert longest_target(names, tokenizer) == max(len(ids) for ids in encode(tokenizer, names.targets))


def test_the_loss_of_validation_is_of_right_targets_alone(both: Path) -> None:
    class Model:
        class config:  # noqa: N801
            pad_token_id = 0

        training, device, seen = False, "cpu", 0

        def eval(self) -> None: ...
        def train(self, mode: bool) -> None: ...

        def __call__(self, labels: Any, **inputs: Any) -> Any:
            self.seen += len(labels)
            return type("Output", (), {"loss": np.float64(1.0)})

    task = SuperGlue(tasks="wsc")
    examples = _examples(task, task.read(both, "valid"))
    model: Any = Model()
    task.loss(model, examples, Share())
    assert model.seen == 3


def test_options_that_cannot_be_are_refused() -> None:
    for options, message in (
        ({"cap": 0}, "got cap=0; expected at least 1"),
        ({"valid_examples": -1}, "got valid_examples=-1; expected 0"),
        ({"tasks": 3}, "got tasks=3; expected str or a list of str or null"),
    ):
        with pytest.raises(UserError, match=message):
            Glue.from_options(options)
