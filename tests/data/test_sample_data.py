"""The real files of each data set, read as they are; only some machines have them beside the repository."""

from pathlib import Path

import pytest

from synthesizer_lab.data.classification import Columns, find_classes, read_labeled
from synthesizer_lab.data.files import Parsed
from synthesizer_lab.data.glue import SUITES, GlueExample, read_file, task_files
from synthesizer_lab.data.persona import read_convai2
from synthesizer_lab.data.summarization import read_summaries
from synthesizer_lab.tasks.classification import Classification
from synthesizer_lab.tasks.glue import Glue
from synthesizer_lab.tasks.glue_prompts import prompt, read_label, training_pairs

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="no sample data beside the repository (../shared/data)"),
]
# Training and validation examples.
COUNTS: dict[str, tuple[int | None, int]] = {
    "glue/cola": (8551, 1043),
    "glue/sst2": (67349, 872),
    "glue/mrpc": (3667, 408),
    "glue/stsb": (5749, 1500),
    "glue/rte": (2490, 277),
    "glue/wnli": (635, 71),
    "glue/qnli": (None, 5463),
    "superglue/cb": (250, 56),
    "superglue/copa": (400, 100),
    "superglue/wsc": (554, 104),
    "superglue/wic": (5428, 638),
    "superglue/rte": (2490, 277),
    "superglue/boolq": (32, 3270),
    "superglue/record": (32, 32),
    "superglue/multirc": (154, 4848),
}


def _read(suite: str, name: str, split: str) -> list[GlueExample]:
    task = SUITES[suite][name]
    (path,) = task_files(DATA, task, split).values()
    return read_file(path, task).records


@pytest.mark.parametrize("key", COUNTS)
def test_every_example_has_texts_a_prompt_and_a_target_that_can_be_read(key: str) -> None:
    suite, name = key.split("/")
    for split, count in zip(("train", "valid"), COUNTS[key], strict=True):
        if count is None:
            continue
        examples = _read(suite, name, split)
        assert len(examples) == count
        # WiC has an id twice.
        assert len({example.id for example in examples}) == count - (key == "superglue/wic" and split == "train")
        assert all(all(example.texts.values()) and example.is_labeled for example in examples)
        pairs = [pair for example in examples for pair in training_pairs(example)]
        assert all(source.startswith(("wsc: ", name)) and "  " not in source and wanted for source, wanted in pairs)
        if name == "wsc":
            assert all(prompt(example).count("*") == 2 for example in examples)
        elif examples[0].task.labels:
            labels = [read_label(*pair) for pair in zip(examples, [text for _, text in pairs], strict=True)]
            assert labels == [example.label for example in examples]


def test_quora_pairs_without_header() -> None:
    pairs = read_file(DATA / "glue" / "QQP" / "quora_10k.tsv", SUITES["glue"]["qqp"])
    assert (len(pairs.records), pairs.skipped) == (10_000, 0)
    assert {example.label for example in pairs.records} == {0, 1}


def test_the_suites_together() -> None:
    def counts(split: str, **options: object) -> str:
        return str(Glue.from_options({"together": True, **options}).read(DATA, split).fingerprint()["tasks"])

    expected = [f"{key} {train}" for key, (train, _) in COUNTS.items() if key not in ("glue/wnli", "glue/qnli")]
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
    assert [*train.classes] == ["1", "2", "3", "4"]
    reviews = Classification(classes=["negative", "positive"])
    assert [len(reviews.read(DATA / "imdb", split)) for split in ("train", "valid")] == [8000, 2000]
    pairs = Classification(text=1, text_pair=2, label=3, held_out=0.1)
    train, valid = pairs.read(DATA / "snli", "train"), pairs.read(DATA / "snli", "valid")
    assert len(train) + len(valid) == 9842
    assert 850 < len(valid) < 1120
    named = Columns(("sentence1",), "gold_label", pair=("sentence2",))
    records = Parsed.of(read_labeled(DATA / "snli" / "extra_train.tsv", named)).records
    assert len(records) == 1666
    assert [*find_classes(record.label for record in records)] == ["contradiction", "entailment", "neutral"]


def test_summaries_and_dialogues() -> None:
    files = {"cnn_dailymail/train": 992, "cnn_dailymail/validation": 150, "scitldr/train": 1992, "scitldr/dev": 619}
    assert {name: len(Parsed.of(read_summaries(DATA / f"{name}.jsonl")).records) for name in files} == files
    references = [len(paper.references) for paper in Parsed.of(read_summaries(DATA / "scitldr" / "dev.jsonl")).records]
    assert [references.count(several) for several in (1, 2, 3, 4)] == [94, 237, 267, 21]
    for split, dialogues, turns in (("train", 700, 5470), ("valid", 100, None)):
        replies = Parsed.of(read_convai2(DATA / "personachat" / f"{split}.txt")).records
        assert len({turn.id.split(".")[0] for turn in replies}) == dialogues
        assert turns is None or len(replies) == turns
        assert all(turn.persona and turn.history for turn in replies)
