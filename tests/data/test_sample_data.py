"""The real files of each data set, read as they are; only some machines have them beside the repository."""

from pathlib import Path

import pytest

from synthetic_attention.data.classification import Classes, Columns, read_labeled
from synthetic_attention.data.glue import SUPERGLUE, glue_file, read_glue, read_superglue, superglue_file
from synthetic_attention.data.persona import read_convai2
from synthetic_attention.data.summarization import read_summaries
from synthetic_attention.tasks.classification import Classification
from synthetic_attention.tasks.glue import Glue
from synthetic_attention.tasks.glue_data import SUITES, Item, prompt, read_label, training_pairs

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="no sample data beside the repository (../shared/data)"),
]
# Training and validation examples.
GLUE_COUNTS = {
    "cola": (8551, 1043),
    "sst2": (67349, 872),
    "mrpc": (3667, 408),
    "stsb": (5749, 1500),
    "rte": (2490, 277),
    "wnli": (635, 71),
    "qnli": (None, 5463),
}
SUPERGLUE_COUNTS = {
    "cb": (250, 56),
    "copa": (400, 100),
    "wsc": (554, 104),
    "wic": (5428, 638),
    "rte": (2490, 277),
    "boolq": (32, 3270),
    "record": (32, 32),
    "multirc": (154, 4848),
}


@pytest.mark.parametrize("task", GLUE_COUNTS)
def test_glue(task: str) -> None:
    for split, count in zip(("train", "valid"), GLUE_COUNTS[task], strict=True):
        if count is not None:
            examples = read_glue(glue_file(DATA / "glue", task, split), task).records
            assert len(examples) == len({example.id for example in examples}) == count
            assert all(all(example.texts.values()) and example.label is not None for example in examples)


def test_quora_pairs_without_header() -> None:
    pairs = read_glue(DATA / "glue" / "QQP" / "quora_10k.tsv", "qqp")
    assert (len(pairs.records), pairs.skipped) == (10_000, 0)
    assert {example.label for example in pairs.records} == {0, 1}


@pytest.mark.parametrize("task", SUPERGLUE_COUNTS)
def test_superglue(task: str) -> None:
    for split, count in zip(("train", "valid"), SUPERGLUE_COUNTS[task], strict=True):
        examples = read_superglue(superglue_file(DATA / "superglue", task, split), task).records
        assert len(examples) == count
        assert all(all(example.texts.values()) for example in examples)
        assert all(example.answers if task == "record" else example.label is not None for example in examples)
    subsets = sorted((DATA / "superglue" / SUPERGLUE[task].folder).glob("*32.jsonl"))
    assert [path.name for path in subsets] == ["dev32.jsonl", "train32.jsonl"]


def test_every_example_has_a_prompt_and_a_target_that_can_be_read() -> None:
    for suite, find, read in (("glue", glue_file, read_glue), ("superglue", superglue_file, read_superglue)):
        for name in SUITES[suite].keys() - {"mnli", "qqp"}:
            task = SUITES[suite][name]
            examples = read(find(DATA / suite, name, "valid"), name).records
            pairs = [pair for example in examples for pair in training_pairs(Item(suite, name, "", example))]
            assert all(
                source.startswith(("wsc: *", name)) and "  " not in source and wanted for source, wanted in pairs
            )
            if task.labels and name != "wsc":
                labels = [read_label(task, *pair) for pair in zip(examples, [text for _, text in pairs], strict=True)]
                assert labels == [example.label for example in examples]


def test_every_pronoun_of_wsc_is_marked_once() -> None:
    for split in ("train", "valid"):
        for example in read_superglue(superglue_file(DATA / "superglue", "wsc", split), "wsc").records:
            source = prompt(SUITES["superglue"]["wsc"], example)
            assert source.count("*") == 2
            assert example.texts["referent"].lower() in " ".join(source.replace("*", "").lower().split())


def test_the_suites_together() -> None:
    def counts(split: str, **options: object) -> str:
        return str(Glue.from_options({"together": True, **options}).read(DATA, split).fingerprint()["tasks"])

    expected = [f"superglue/{name} {count[0]}" for name, count in SUPERGLUE_COUNTS.items()]
    expected += [f"glue/{name} {GLUE_COUNTS[name][0]}" for name in ("cola", "sst2", "mrpc", "stsb", "rte")]
    assert sorted(counts("train").split(", ")) == sorted(expected)
    # WNLI is only taken by name, and QNLI has no training file.
    assert counts("train", tasks="wnli") == "glue/wnli 635"
    assert counts("valid", tasks="qnli", together=False) == "glue/qnli 5463"


def test_classification() -> None:
    news = Classification(classes=["World", "Sports", "Business", "Sci/Tech"])
    train, valid = news.read(DATA / "ag_news", "train"), news.read(DATA / "ag_news", "valid")
    assert (len(train), len(valid)) == (5600, 1000)
    assert valid.classes == train.classes
    assert train.classes is not None
    assert train.classes.values == ("1", "2", "3", "4")
    reviews = Classification(classes=["negative", "positive"])
    assert [len(reviews.read(DATA / "imdb", split)) for split in ("train", "valid")] == [8000, 2000]
    pairs = Classification(text=1, text_pair=2, label=3, held_out=0.1)
    train, valid = pairs.read(DATA / "snli", "train"), pairs.read(DATA / "snli", "valid")
    assert len(train) + len(valid) == 9842
    assert 850 < len(valid) < 1120
    named = Columns(("sentence1",), "gold_label", pair=("sentence2",))
    records = read_labeled(DATA / "snli" / "extra_train.tsv", named).records
    assert len(records) == 1666
    assert Classes.of(record.label for record in records).names == ("contradiction", "entailment", "neutral")


def test_summaries_and_dialogues() -> None:
    files = {"cnn_dailymail/train": 992, "cnn_dailymail/validation": 150, "scitldr/train": 1992, "scitldr/dev": 619}
    assert {name: len(read_summaries(DATA / f"{name}.jsonl").records) for name in files} == files
    references = [len(paper.summaries) for paper in read_summaries(DATA / "scitldr" / "dev.jsonl").records]
    assert [references.count(several) for several in (1, 2, 3, 4)] == [94, 237, 267, 21]
    for split, dialogues, turns in (("train", 700, 5470), ("valid", 100, None)):
        replies = read_convai2(DATA / "personachat" / f"{split}.txt").records
        assert len({turn.id.split(".")[0] for turn in replies}) == dialogues
        assert turns is None or len(replies) == turns
        assert all(turn.persona and turn.history for turn in replies)
