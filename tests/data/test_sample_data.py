"""The real files of each data set, read as they are; they lie beside the repository on some machines only."""

from pathlib import Path

import pytest

from synthetic_attention.data.classes import Classes
from synthetic_attention.data.classification import Columns, read_labeled
from synthetic_attention.data.glue import glue_file, read_glue
from synthetic_attention.data.persona import read_convai2
from synthetic_attention.data.summarization import read_summaries
from synthetic_attention.data.superglue import SUPERGLUE, read_superglue, superglue_file
from synthetic_attention.tasks.classification import Classification
from synthetic_attention.tasks.glue import Glue
from synthetic_attention.tasks.text_to_text import BENCHMARKS, prompt, read_label, training_pairs

DATA = Path(__file__).parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no sample data beside the repository (../shared/data)")


@pytest.mark.parametrize(
    ("task", "train", "valid"),
    [
        ("cola", 8551, 1043),
        ("sst2", 67349, 872),
        ("mrpc", 3667, 408),
        ("stsb", 5749, 1500),
        ("rte", 2490, 277),
        ("wnli", 635, 71),
        ("qnli", None, 5463),
    ],
)
def test_glue(task: str, train: int | None, valid: int) -> None:
    for split, count in (("train", train), ("valid", valid)):
        if count is not None:
            examples = read_glue(glue_file(DATA / "glue", task, split), task).records
            assert len(examples) == count
            assert all(all(example.texts.values()) and example.label is not None for example in examples)
            assert len({example.id for example in examples}) == count


def test_quora_pairs_that_are_not_the_official_file() -> None:
    pairs = read_glue(DATA / "glue" / "QQP" / "quora_10k.tsv", "qqp")
    assert (len(pairs.records), pairs.skipped) == (10_000, 0)
    assert {example.label for example in pairs.records} == {0, 1}


@pytest.mark.parametrize(
    ("task", "train", "valid"),
    [
        ("cb", 250, 56),
        ("copa", 400, 100),
        ("wsc", 554, 104),
        ("wic", 5428, 638),
        ("rte", 2490, 277),
        ("boolq", 32, 3270),
        ("record", 32, 32),
    ],
)
def test_superglue(task: str, train: int, valid: int) -> None:
    for split, count in (("train", train), ("valid", valid)):
        examples = read_superglue(superglue_file(DATA / "superglue", task, split), task).records
        assert len(examples) == count
        assert all(all(example.texts.values()) for example in examples)
        assert all(example.answers if task == "record" else example.label is not None for example in examples)
    subsets = sorted((DATA / "superglue" / SUPERGLUE[task].folder).glob("*32.jsonl"))
    assert [path.name for path in subsets] == ["dev32.jsonl", "train32.jsonl"]
    assert [len(read_superglue(path, task).records) for path in subsets] == [32, 32]


def test_multirc_counts_passages_questions_and_answers() -> None:
    answers = read_superglue(superglue_file(DATA / "superglue", "multirc", "valid"), "multirc").records
    assert len({example.texts["paragraph"] for example in answers}) == 83
    assert len({example.group for example in answers}) == 953
    assert len(answers) == len({example.id for example in answers}) == 4848


def test_every_example_can_be_posed_and_its_target_read() -> None:
    for benchmark, locate, read in (("glue", glue_file, read_glue), ("superglue", superglue_file, read_superglue)):
        for name, task in BENCHMARKS[benchmark].items():
            if name in ("mnli", "qqp"):
                continue
            examples = read(locate(DATA / benchmark, name, "valid"), name).records
            pairs = training_pairs(task, examples)
            assert pairs
            assert all(source.startswith(("wsc: *", f"{name}")) and wanted for source, wanted in pairs)
            assert all("  " not in source for source, _ in pairs)
            if task.labels and name != "wsc":
                right = [read_label(task, *pair) for pair in zip(examples, [text for _, text in pairs], strict=True)]
                assert right == [example.label for example in examples]


def test_every_pronoun_of_wsc_is_marked_once() -> None:
    for split in ("train", "valid"):
        for example in read_superglue(superglue_file(DATA / "superglue", "wsc", split), "wsc").records:
            source = prompt(BENCHMARKS["superglue"]["wsc"], example)
            assert source.count("*") == 2
            assert example.texts["referent"].lower() in " ".join(source.replace("*", "").lower().split())


def test_classification() -> None:
    news = Columns(("Title", "Description"), "Class Index")
    train = read_labeled(DATA / "ag_news" / "train.csv", news).records
    classes = Classes.of((example.label for example in train), ["World", "Sports", "Business", "Sci/Tech"])
    assert classes.values == ("1", "2", "3", "4")
    assert len(train) == 5600
    assert len(read_labeled(DATA / "ag_news" / "valid.csv", news, classes=classes).records) == 1000
    for split, count in (("train", 8000), ("valid", 2000)):
        reviews = read_labeled(DATA / "imdb" / f"{split}.jsonl.gz", Columns(breaks=True)).records
        assert len(reviews) == count
        assert not any("<br" in review.texts[0] for review in reviews)
    numbered = read_labeled(DATA / "snli" / "train_from_dev.tsv", Columns((1,), 3, pair=(2,))).records
    named = read_labeled(
        DATA / "snli" / "extra_train.tsv", Columns(("sentence1",), "gold_label", pair=("sentence2",))
    ).records
    assert (len(numbered), len(named)) == (9842, 1666)
    assert Classes.of(example.label for example in named).names == ("contradiction", "entailment", "neutral")


def test_one_task_of_both_suites_reads_what_is_there() -> None:
    task = Glue(together=True)
    train, valid = (task.read(DATA, split).counts() for split in ("train", "valid"))
    glue = {"cola": 8551, "sst2": 67349, "mrpc": 3667, "stsb": 5749, "rte": 2490}
    superglue = {"cb": 250, "copa": 400, "rte": 2490, "wic": 5428, "wsc": 554, "boolq": 32, "record": 32}
    expected = {f"glue/{name}": count for name, count in glue.items()}
    expected |= {f"superglue/{name}": count for name, count in superglue.items()}
    answers = train.pop("superglue/multirc")
    assert train == expected
    assert answers == 154
    assert answers == len(read_superglue(DATA / "superglue/MultiRC/train32.jsonl", "multirc").records)
    # WNLI is only taken by name, QNLI has nothing to train on, and Quora's pairs are no official file.
    assert {*valid} == {*expected, "superglue/multirc"}
    assert (valid["glue/stsb"], valid["superglue/boolq"], valid["superglue/multirc"]) == (1500, 3270, 4848)
    assert Glue(tasks="wnli", together=True).read(DATA, "train").counts() == {"glue/wnli": 635}
    assert Glue().read(DATA, "train").counts() == {
        **{f"glue/{name}": count for name, count in glue.items()},
        "glue/wnli": 635,
    }
    assert Glue(tasks="qnli").read(DATA, "valid").counts() == {"glue/qnli": 5463}


def test_classification_as_a_task() -> None:
    news = Classification(classes=["World", "Sports", "Business", "Sci/Tech"])
    train, valid = news.read(DATA / "ag_news", "train"), news.read(DATA / "ag_news", "valid")
    assert (len(train), len(valid), train.sides) == (5600, 1000, 1)
    assert valid.known_classes() == train.known_classes()
    assert train.known_classes().names == ("World", "Sports", "Business", "Sci/Tech")
    reviews = Classification(classes=["negative", "positive"])
    assert [len(reviews.read(DATA / "imdb", split)) for split in ("train", "valid")] == [8000, 2000]
    pairs = Classification(
        text=1, text_pair=2, label=3, held_out=0.1, classes=["entailment", "neutral", "contradiction"]
    )
    train, valid = pairs.read(DATA / "snli", "train"), pairs.read(DATA / "snli", "valid")
    assert (len(train) + len(valid), train.sides) == (9842, 2)
    assert 850 < len(valid) < 1120
    assert len(Classification(glue_task="stsb").read(DATA, "valid")) == 1500


def test_summaries() -> None:
    for folder, split, count in (
        ("cnn_dailymail", "train", 992),
        ("cnn_dailymail", "validation", 150),
        ("scitldr", "train", 1992),
        ("scitldr", "dev", 619),
    ):
        assert len(read_summaries(DATA / folder / f"{split}.jsonl").records) == count
    references = [len(paper.summaries) for paper in read_summaries(DATA / "scitldr" / "dev.jsonl").records]
    assert [references.count(several) for several in (1, 2, 3, 4)] == [94, 237, 267, 21]


def test_dialogues() -> None:
    for split, dialogues, turns in (("train", 700, 5470), ("valid", 100, None)):
        replies = read_convai2(DATA / "personachat" / f"{split}.txt").records
        assert len({turn.id.split(".")[0] for turn in replies}) == dialogues
        assert turns is None or len(replies) == turns
        assert all(turn.persona and turn.history for turn in replies)
