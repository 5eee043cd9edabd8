"""The task of pretraining by span corruption: vocabulary, packing, noise of each pass, loss."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from synthetic_attention.data.corpus import read_corpus
from synthetic_attention.data.tokenizer import decode, encode
from synthetic_attention.tasks import UserError, get_task
from synthetic_attention.tasks.span_corruption import SpanCorruption
from synthetic_attention.tasks.span_noise import restore
from synthetic_attention.training.evaluation import evaluate_run
from synthetic_attention.training.session import start_run
from synthetic_attention.training.settings import read_settings

LINES = [f"line {number} of a text that says {number * number}" for number in range(40)]
TEXT = read_corpus("train", LINES)
TASK = SpanCorruption(sentinels=10)
SMALL = (
    *("d_model=16", "num_heads=2", "num_layers=1", "d_ff=32", "max_position_embeddings=32", "vocab_size=280"),
    *("batch_tokens=400", "warmup_steps=2", "eval_interval=2", "log_interval=1"),
)


def test_the_sentinels_are_the_top_of_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = TASK.tokenizer(TEXT, 300, 32)
    last = len(tokenizer) - 1
    assert last < 300
    assert tokenizer.convert_ids_to_tokens([last, last - 1, last - 9]) == [
        "<extra_id_0>",
        "<extra_id_1>",
        "<extra_id_9>",
    ]
    # A text that has their names has no sentinels.
    (ids,) = encode(tokenizer, ["<extra_id_0>"])
    assert ids.max() < last - 9
    assert decode(tokenizer, [ids.tolist()]) == ["<extra_id_0>"]
    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(reloaded) == last + 1
    assert reloaded.convert_tokens_to_ids("<extra_id_0>") == last
    with pytest.raises(UserError, match=r"got vocab_size=269; expected at least 270: .* 10 sentinels"):
        TASK.tokenizer(TEXT, 269, 32)


def test_examples_fill_the_model_exactly_and_nothing_is_lost() -> None:
    tokenizer = TASK.tokenizer(TEXT, 290, 32)
    examples = TASK.examples(TEXT, tokenizer, 32)
    stream = np.concatenate(encode(tokenizer, LINES))
    text = []
    for index, (targets_length, (inputs, targets)) in enumerate(
        zip(examples.lengths()[:, 1], (examples[index] for index in range(len(examples))), strict=True)
    ):
        assert (len(inputs), len(targets)) == (32, targets_length)
        assert inputs[-1] == targets[-1] == tokenizer.eos_token_id
        spans = examples.packing.lengths(index).spans
        # The last sentinel is there on both sides, whatever its span is cut to.
        assert examples.first_sentinel - spans + 1 in inputs
        assert examples.first_sentinel - spans + 1 in targets
        text.append(restore(inputs[:-1], targets[:-1], len(tokenizer) - 1, spans))
    joined = np.concatenate(text)
    assert joined.tolist() == stream[: len(joined)].tolist()
    assert 0 <= len(stream) - len(joined) < examples.packing.start(1) + 2
    batch = TASK.collate([examples[0], examples[1]], 0)
    assert TASK.tokens(batch) == examples.lengths()[:2].sum()
    assert batch["attention_mask"].all()


def test_every_pass_has_other_noise_and_validation_always_the_same() -> None:
    tokenizer = TASK.tokenizer(TEXT, 290, 32)
    one, other = (TASK.examples(TEXT, tokenizer, 32) for _ in range(2))
    assert (one[3][0] == other[3][0]).all()
    first = one[3][0]
    for examples in (one, other):
        assert sorted(examples.draw(np.random.default_rng(5))) == [*range(len(examples))]
    assert (one[3][0] == other[3][0]).all()
    second = one[3][0]
    one.draw(np.random.default_rng(6))
    assert not (first == second).all()
    assert not (second == one[3][0]).all()
    # And examples differ in where their noise is.
    lowest = one.first_sentinel - one.packing.most_spans
    assert len({tuple(np.flatnonzero(one[index][0] > lowest)) for index in range(len(one))}) > len(one) / 2


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    tokenizer = TASK.tokenizer(TEXT, 290, 64)
    with pytest.raises(UserError, match=r"train: \d+ tokens; expected at least"):
        TASK.examples(read_corpus("train", ["short"]), tokenizer, 64)
    with pytest.raises(UserError, match=r"up to 29 spans, and the vocabulary 10 sentinels; pass --set sentinels=29"):
        TASK.examples(TEXT, tokenizer, 512)
    with pytest.raises(UserError, match=r"got inputs of 64 .* expected at most 32, max_position_embeddings"):
        SpanCorruption(inputs_length=64).examples(TEXT, tokenizer, 32)
    for options, message in (
        ({"density": 1.5}, "got density=1.5; expected more than 0"),
        ({"mean_span_length": 0.1}, "got mean_span_length=0.1"),
        ({"sentinels": 0}, "got sentinels=0"),
        ({"inputs_length": 2}, "got inputs_length=2; expected at least 19"),
        ({"max_documents": 0}, "got max_documents=0"),
    ):
        with pytest.raises(UserError, match=message):
            SpanCorruption.from_options(options)
    with pytest.raises(UserError, match=r"no file train\{\.txt \| \.jsonl \| \.json\}"):
        TASK.read(tmp_path, "train")


def test_it_is_trained_and_scored(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    # Two files are one split; blank lines are no documents.
    (data / "train-1.txt").write_text("\n".join(LINES[:20]), encoding="utf-8")
    (data / "train-2.txt").write_text("\n\n".join(LINES[20:]), encoding="utf-8")
    (data / "valid.txt").write_text("\n".join(LINES[:10]), encoding="utf-8")
    assert TASK.read(data, "train").texts == LINES
    task = get_task("span-corruption").from_options({"sentinels": 10})
    settings = read_settings(synthesizer="random", preset="tiny", seed=1, overrides=[*SMALL, "steps=2"])
    lines: list[str] = []
    metrics = start_run(task=task, data=data, settings=settings, output=run, report=lines.append).metrics
    assert "examples" in lines[0]
    results = evaluate_run(run, split="valid")
    assert results["loss"] == pytest.approx(metrics["best"]["loss"], rel=1e-5)
    assert results["perplexity"] == pytest.approx(math.exp(results["loss"]))
    rows = [json.loads(line) for line in Path(results["predictions"]).read_text(encoding="utf-8").splitlines()]
    tokens = sum(row["tokens"] for row in rows)
    assert sum(row["loss"] * row["tokens"] for row in rows) / tokens == pytest.approx(results["loss"])


def test_documents_of_several_files_and_kinds(tmp_path: Path) -> None:
    (tmp_path / "train-1.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    rows = [{"article": "three\nlines"}, {"source": ["four,", "joined."]}, {"text": " "}]
    with gzip.open(tmp_path / "train-2.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n\n" for row in rows))
    wanted = ["one", "two", "three\nlines", "four, joined."]
    assert TASK.read(tmp_path, "train").texts == wanted
    streamed = SpanCorruption(stream=True).read(tmp_path, "train")
    assert not isinstance(streamed.texts, list)
    assert [*streamed.texts] == [*streamed.texts] == wanted
    assert streamed.fingerprint() == TASK.read(tmp_path, "train").fingerprint()
    (tmp_path / "valid.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"jsonl, line 2: no field text, .* with text_field; the fields are: body"):
        TASK.read(tmp_path, "valid")
    (tmp_path / "valid.jsonl").write_text('{"text": "a", "body": "b"}\n{"text": 1}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"valid.jsonl, line 2: no field 'body'; the fields are: text"):
        SpanCorruption(text_field="body").read(tmp_path, "valid")
    with pytest.raises(UserError, match=r"valid.jsonl, line 2: field 'text' has a int"):
        TASK.read(tmp_path, "valid")


def test_a_streamed_corpus_gives_the_same_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.txt").write_text("\n".join(LINES), encoding="utf-8")
    streaming = SpanCorruption(sentinels=10, stream=True)
    corpus = streaming.read(tmp_path, "train")
    tokenizer, other = streaming.tokenizer(corpus, 290, 32), TASK.tokenizer(TEXT, 290, 32)
    assert tokenizer.get_vocab() == other.get_vocab()
    streamed, whole = streaming.examples(corpus, tokenizer, 32), TASK.examples(TEXT, other, 32)
    assert isinstance(streamed.tokens, np.memmap)
    assert (streamed.lengths() == whole.lengths()).all()
    for index in range(len(whole)):
        for one, two in zip(streamed[index], whole[index], strict=True):
            assert one.dtype == two.dtype == np.int32
            assert one.tolist() == two.tolist()
