"""The task of pretraining by span corruption: vocabulary, packing, noise of each pass, loss."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from synthesizer_lab.data.source import Corpus
from synthesizer_lab.data.tokenizer import decode, encode
from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.base import count_tokens
from synthesizer_lab.tasks.large import new_tokenizer
from synthesizer_lab.tasks.span_corruption import SpanCorruption, SpanLayout, SpanLengths, corrupt, noise_mask
from synthesizer_lab.training.evaluation import evaluate_run, generate_chunks

LINES = [f"line {number} of a text that says {number * number}" for number in range(40)]
TEXT = Corpus("train", LINES)
TASK = SpanCorruption(sentinels=10)


def restore(inputs: np.ndarray, targets: np.ndarray, first_sentinel: int, spans: int) -> np.ndarray:
    """The text that `corrupt` took apart."""
    sides = []
    for ids in (inputs, targets):
        at = np.flatnonzero((ids <= first_sentinel) & (ids > first_sentinel - spans))
        assert ids[at].tolist() == [first_sentinel - span for span in range(spans)]
        sides.append(np.split(ids, at))
    kept, cut = sides
    # Every part after the first begins with a sentinel.
    parts = [part[1:] for pair in zip(cut[1:], kept[1:], strict=True) for part in pair]
    return np.concatenate([kept[0], *parts])


def test_the_sentinels_are_the_top_of_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = new_tokenizer(TASK, TEXT, 300, 32)
    last = len(tokenizer) - 1
    assert last < 300
    expected = ["<extra_id_0>", "<extra_id_1>", "<extra_id_9>"]
    assert tokenizer.convert_ids_to_tokens([last, last - 1, last - 9]) == expected
    # A text that has their names has no sentinels.
    (ids,) = encode(tokenizer, ["<extra_id_0>"])
    assert ids.max() < last - 9
    assert decode(tokenizer, [ids.tolist()]) == ["<extra_id_0>"]
    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(reloaded) == last + 1
    assert reloaded.convert_tokens_to_ids("<extra_id_0>") == last
    with pytest.raises(UserError, match=r"got vocab_size=269; expected at least 270: .* 10 sentinels"):
        new_tokenizer(TASK, TEXT, 269, 32)


def test_examples_fill_the_model_exactly_and_nothing_is_lost() -> None:
    tokenizer = new_tokenizer(TASK, TEXT, 290, 32)
    examples = TASK.encode(TEXT, tokenizer, 32)
    stream = np.concatenate(encode(tokenizer, LINES))
    text = []
    for index, lengths in enumerate(examples.lengths().tolist()):
        inputs, targets = examples[index]
        assert [len(inputs), len(targets)] == lengths
        assert (len(inputs), inputs[-1], targets[-1]) == (32, tokenizer.eos_token_id, tokenizer.eos_token_id)
        spans = examples.layout.lengths(index).spans
        text.append(restore(inputs[:-1], targets[:-1], len(tokenizer) - 1, spans))
    joined = np.concatenate(text)
    assert joined.tolist() == stream[: len(joined)].tolist()
    assert 0 <= len(stream) - len(joined) < examples.layout.start(1) + 2
    batch = TASK.collate([examples[0], examples[1]], 0)
    assert count_tokens(batch, with_targets=True) == examples.lengths()[:2].sum()
    assert batch["attention_mask"].all()


def test_every_pass_has_other_noise_and_validation_always_the_same() -> None:
    tokenizer = new_tokenizer(TASK, TEXT, 290, 32)
    one, other = (TASK.encode(TEXT, tokenizer, 32) for _ in range(2))
    assert (one[3][0] == other[3][0]).all()
    first = one[3][0]
    for examples in (one, other):
        assert sorted(examples.draw(np.random.default_rng(5))) == [*range(len(examples))]
    assert (one[3][0] == other[3][0]).all()
    second = one[3][0]
    one.draw(np.random.default_rng(6))
    assert not (first == second).all()
    assert not (second == one[3][0]).all()
    # An example of an earlier pass keeps its noise when the next pass begins.
    size, before = len(one), one[3][0]
    one.draw(np.random.default_rng(7), number=1)
    assert (one[3][0] == before).all()
    assert not (one[size + 3][0] == before).all()
    # And examples differ in where their noise is.
    lowest = one.first_sentinel - one.layout.most_spans
    assert len({tuple(np.flatnonzero(one[index][0] > lowest)) for index in range(len(one))}) > len(one) / 2


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    tokenizer = new_tokenizer(TASK, TEXT, 290, 64)
    with pytest.raises(UserError, match=r"train: \d+ tokens; expected at least"):
        TASK.encode(Corpus("train", ["short"]), tokenizer, 64)
    with pytest.raises(UserError, match=r"up to 29 spans, and the vocabulary 10 sentinels; pass --set sentinels=29"):
        TASK.encode(TEXT, tokenizer, 512)
    with pytest.raises(UserError, match=r"got targets of up to \d+ tokens with density=0.7; expected at most .*=64"):
        replace(TASK, density=0.7, mean_span_length=8).encode(TEXT, tokenizer, 64)
    with pytest.raises(UserError, match=r"no file train\{\.txt \| \.jsonl \| \.json\}"):
        TASK.records(tmp_path, "train").load()


def test_it_is_trained_and_scored(tmp_path: Path, train: Callable[..., Any]) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    # Two files are one split; blank lines are no documents.
    (data / "train-1.txt").write_text("\n".join(LINES[:20]), encoding="utf-8")
    (data / "train-2.txt").write_text("\n\n".join(LINES[20:]), encoding="utf-8")
    (data / "valid.txt").write_text("\n".join(LINES[:10]), encoding="utf-8")
    assert TASK.records(data, "train").load().texts == LINES
    metrics, lines = train(TASK, data, run, "max_position_embeddings=32")
    assert "examples" in lines[0]
    results = evaluate_run(run, split="valid")
    assert results["loss"] == pytest.approx(metrics["best"]["loss"], rel=1e-5)
    assert results["perplexity"] == pytest.approx(math.exp(results["loss"]))
    with pytest.raises(UserError, match="a run of task span-corruption gives no text for a line"):
        next(generate_chunks(run, [["line"]]))


def test_spans_are_spread_evenly() -> None:
    rng = np.random.default_rng(6)
    mean = np.mean([noise_mask(SpanLengths(100, 15, 5), rng) for _ in range(4000)], axis=0)
    # The first token is always kept, the last never; between them noise is everywhere about as likely.
    assert (mean[0], mean[-1]) == (0, 1)
    assert abs(mean[10:90] - mean[10:90].mean()).max() < 0.03


@hypothesis_settings(max_examples=100, deadline=None)
@given(st.integers(20, 600), st.floats(0.01, 0.45), st.floats(1.0, 12.0), st.integers(0, 60))
def test_examples_fit_exactly(inputs_length: int, density: float, span: float, index: int) -> None:
    try:
        layout = SpanLayout(inputs_length, density, span)
    except UserError:
        # Too short for a span, or too many spans; which those are is tested below.
        assume(False)
    lengths = layout.lengths(index)
    # Examples follow each other without a gap.
    assert layout.start(index + 1) == layout.start(index) + lengths.raw
    assert lengths.spans <= layout.most_spans
    mask = noise_mask(lengths, np.random.default_rng(inputs_length))
    # As many spans are cut out as are kept: the text begins with one that is kept and ends with one that is not.
    assert (len(mask), mask.sum()) == (lengths.raw, lengths.noise)
    assert (np.diff(mask.astype(np.int8), prepend=0) == 1).sum() == lengths.spans
    assert mask[-1] > mask[0]
    tokens = np.arange(lengths.raw, dtype=np.int32)
    inputs, targets = corrupt(tokens, mask, 5000)
    np.testing.assert_array_equal(restore(inputs, targets, 5000, lengths.spans), tokens)
    # With </s> to come; so nothing is cut off.
    assert (len(inputs) + 1, len(targets)) == (inputs_length, lengths.noise + lengths.spans)
    assert inputs.min() >= 0
    assert inputs[-1] == 5000 - lengths.spans + 1


def test_layouts_that_cannot_be_are_refused() -> None:
    for options in ({"density": 0}, {"density": 1.5}, {"density": math.nan}, {"mean_span_length": 0.5}):
        with pytest.raises(UserError, match=next(iter(options))):
            SpanLayout(512, **options)
    with pytest.raises(UserError, match=r"inputs of 18 tokens would have 0\.9 spans"):
        SpanLayout(18)
    assert SpanLayout(19).lengths(0).spans == 1
