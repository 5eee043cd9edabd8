"""Calibration text of every kind of converted model, to the end: heads replaced and distilled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from models.conftest import word_tokenizer
from synthesizer_lab.attention.fitting import fit, measure_divergences
from synthesizer_lab.attention.layers import mean_loss
from synthesizer_lab.errors import UserError
from synthesizer_lab.heads.choose import Head, replace_heads
from synthesizer_lab.heads.distill import distill
from synthesizer_lab.heads.text import read_batches
from synthesizer_lab.tasks import make_task
from synthetic_attention import convert

WORDS = ["w5 w6 w7 w8", "w9 w10", "", "w11 w12 w13 w14 w15 w16 w17", "w5 w9 w21", "w30"]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in WORDS))
    return path


@pytest.mark.parametrize("name", ["t5", "gpt2", "bert", "bert-model", "t5-encoder", "distilbert-classifier"])
def test_lines(sources: Callable[[str], PreTrainedModel], lines: Path, name: str) -> None:
    model: Any = convert(sources(name), max_length=16)
    batches, held_out = read_batches(model, word_tokenizer(mask_token="w4"), lines, batch_tokens=20)
    assert [sum(len(batch["input_ids"]) for batch in part) for part in (batches, held_out)] == [4, 1]
    assert all(batch["attention_mask"][:, 0].all() for batch in batches)
    before = mean_loss(model, batches)
    fitted = fit(model, batches)
    # On the text itself the mean attention is nearer than uniform attention, in T5 with its position bias.
    found = measure_divergences(model, fitted, batches)
    assert all((each["random"] <= each["uniform"] + 1e-6).all() for each in found)
    new = replace_heads(model, fitted["random"], "random", [Head(0, 1), Head(1, 0)])
    distill(new, model, batches, 2)
    assert np.isfinite([before, mean_loss(new, batches)]).all()


def test_labels_of_lines(sources: Callable[[str], PreTrainedModel], lines: Path) -> None:
    tokenizer = word_tokenizer(mask_token="w4")
    (batch,), (last,) = read_batches(convert(sources("gpt2")), tokenizer, lines, batch_tokens=100)
    assert last["labels"].tolist() == [[-100, 30]]
    # The token that begins a text is not predicted.
    assert (batch["input_ids"][:, 0] == 0).all()
    assert batch["labels"][-1].tolist() == [-100, *range(11, 18)]
    (batch,), _ = read_batches(convert(sources("bert")), tokenizer, lines, batch_tokens=100)
    masked = batch["labels"] != -100
    assert masked.any()
    assert (batch["input_ids"][masked] == 4).all()
    marian: Any = convert(sources("marian"))
    (batch,), _ = read_batches(marian, tokenizer, lines, batch_tokens=100)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    output = marian.generate(**inputs, max_new_tokens=3, do_sample=False, num_beams=1)
    assert torch.equal(batch["labels"][:, :3].clamp_min(1), output[:, 1:4])


def test_without_a_head_the_last_hidden_state_is_the_label(
    sources: Callable[[str], PreTrainedModel], lines: Path
) -> None:
    model: Any = convert(sources("bert-model"))
    (batch,), (last,) = read_batches(model, word_tokenizer(), lines, batch_tokens=100)
    mask = batch["attention_mask"].bool()
    assert not mask.all()
    theirs = sources("bert-model")(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    torch.testing.assert_close(batch["labels"][mask], theirs[mask], atol=1e-5, rtol=1e-5)
    assert mean_loss(model, [batch, last]) == 0
    new = convert(model, "random")
    errors = (new(batch["input_ids"], batch["attention_mask"]).last_hidden_state - theirs)[mask].square()
    assert mean_loss(new, [batch]) == pytest.approx(errors.mean().item(), rel=1e-4)
    calibrated = fit(model, [batch])["random"]
    losses = [mean_loss(each, [batch]) for each in (new, calibrated)]
    distill(calibrated, model, [batch], 20)
    assert mean_loss(calibrated, [batch]) < losses[1] < losses[0]


def test_a_run_of_classification(sources: Callable[[str], PreTrainedModel], tmp_path: Path) -> None:
    model, tokenizer = convert(sources("bert-classifier")), word_tokenizer()
    task = make_task("classification", {})
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"w5\t{n}\n" for n in range(80)))
    with pytest.raises(UserError, match="those of the model LABEL_0, LABEL_1"):
        read_batches(model, tokenizer, tmp_path, task)
    model.config.id2label = dict(enumerate(map(str, range(80))))
    task = make_task("classification", {"held_out": 0.0})
    # Fewer examples than classes.
    (batch,), (last,) = read_batches(model, tokenizer, tmp_path, task, examples=40)
    assert (len(batch["labels"]), len(last["labels"])) == (36, 4)
    # Held out of all data, and neighbours together.
    labels = {int(label) for batch in read_batches(model, tokenizer, tmp_path, task)[1] for label in batch["labels"]}
    assert labels == {label ^ 1 for label in labels}
    assert max(labels) - min(labels) > 20


def test_what_cannot_be_read(sources: Callable[[str], PreTrainedModel], tmp_path: Path) -> None:
    model, tokenizer = convert(sources("marian")), word_tokenizer()
    with pytest.raises(UserError, match="--task"):
        read_batches(model, tokenizer, tmp_path)
    (tmp_path / "lines").write_text("w5\n")
    with pytest.raises(UserError, match="at least 2"):
        read_batches(model, tokenizer, tmp_path / "lines")
