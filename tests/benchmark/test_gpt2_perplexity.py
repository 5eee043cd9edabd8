"""The comparison with GPT-2, on models of a few thousand parameters."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import GPT2LMHeadModel

from scripts import load_script
from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM

SIZES = ("d_model=16", "num_heads=2", "num_layers=1", "d_ff=32", "max_position_embeddings=32", "vocab_size=280")
TRAINING = ("batch_tokens=200", "eval_steps=1", "logging_steps=1")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("gpt2_perplexity")


@pytest.mark.slow
def test_both_are_trained_and_scored_alike(script: ModuleType, tmp_path: Path) -> None:
    lines = [f"line {number} of {number * 7}" for number in range(40)]
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text("\n".join(lines), encoding="utf-8")
    sets = [word for setting in (*SIZES, *TRAINING) for word in ("--set", setting)]
    arguments = ["--data", str(tmp_path), "--steps", "2", *sets, "--output", f"{tmp_path}/runs"]
    script.main(arguments)
    results = tmp_path / "runs/results.json"
    written = results.read_text(encoding="utf-8")
    found = json.loads(written)["results"]
    assert [*found] == ["gpt2", "vanilla"]
    for name in ("parameters", "steps", "tokens", "train_examples"):
        assert found["gpt2"][name] == found["vanilla"][name]
    assert found["gpt2"]["best"]["word_perplexity"] != found["vanilla"]["best"]["word_perplexity"]
    for metrics in found.values():
        assert metrics["best"]["perplexity"] == pytest.approx(torch.tensor(metrics["best"]["loss"]).exp().item())
    config = json.loads((tmp_path / "runs/gpt2/config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "gpt2"
    # The results are printed, not made again.
    script.main(arguments)
    assert results.read_text(encoding="utf-8") == written


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_gpt2_and_smoothed_as_ours(script: ModuleType, smoothing: float) -> None:
    config = SynthesizerConfig(
        vocab_size=53,
        d_model=22,
        num_heads=2,
        d_ff=31,
        num_layers=2,
        max_position_embeddings=19,
        synthesizer="vanilla",
        position_embedding_type="learned",
        dropout_rate=0.0,
    )
    model = script.Gpt2(config)
    assert model.num_parameters() == SynthesizerForCausalLM(config).num_parameters()
    ids, mask = torch.randint(3, 53, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, 0] = -100
    scored = int((labels != -100).sum())
    theirs = GPT2LMHeadModel(script.gpt2_config(config))
    theirs.load_state_dict(model.state_dict())
    logits = theirs.eval()(ids, attention_mask=mask).logits[:, :-1]
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=smoothing
    )
    found = model(ids, mask, labels, num_items_in_batch=scored, smoothing=smoothing).loss
    torch.testing.assert_close(found, expected)
