"""benchmarks/gpt2.py: GPT-2 as the model of language modeling."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import GPT2LMHeadModel

from cli.conftest import SETS, Call, call, check_error
from scripts import load_script
from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM

__all__ = ["call"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("gpt2")


@pytest.mark.slow
def test_the_command_trains_and_scores_gpt2(
    script: ModuleType, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LanguageModeling, "model_class", script.Gpt2)
    for split in ("train", "valid"):
        lines = [f"line {number} of {number * 7}" for number in range(40)]
        (tmp_path / f"{split}.txt").write_text("\n".join(lines), encoding="utf-8")
    command = ["compare", "language-modeling", "--data", tmp_path, "--output", tmp_path / "runs", "--split", "valid"]
    command += [*SETS, "--steps", 2, "--json", "--synthesizers"]
    code, out, err = call(*command, "vanilla")
    assert code == 0, err
    (run,) = json.loads(out)["runs"]
    assert run["tests"]["valid"]["scores"]["loss"] == pytest.approx(run["validation"]["scores"]["loss"], rel=1e-5)
    config = json.loads((tmp_path / "runs" / run["folder"] / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "gpt2"
    assert call("generate", tmp_path / "runs" / run["folder"], "line 1", "--max-new-tokens", 2)[::2] == (0, "")
    check_error(call(*command, "random"), "'random'")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_gpt2_and_smoothed_as_ours(script: ModuleType, smoothing: float) -> None:
    sizes = {"vocab_size": 53, "d_model": 22, "num_heads": 2, "d_ff": 31, "num_layers": 2}
    config = SynthesizerConfig(
        **sizes, max_position_embeddings=19, synthesizer="vanilla", position_embedding_type="learned", dropout_rate=0.0
    )
    model = script.Gpt2(config).eval()
    assert model.num_parameters() == SynthesizerForCausalLM(config).num_parameters()
    ids, mask = torch.randint(3, 53, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, 0] = -100
    theirs = GPT2LMHeadModel(script.gpt2_config(config))
    theirs.load_state_dict(model.state_dict())
    logits = theirs.eval()(ids, attention_mask=mask).logits[:, :-1]
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=smoothing, reduction="sum"
    )
    torch.testing.assert_close(model(ids, mask, labels, smoothing=smoothing).loss, expected)
    if not smoothing:
        losses = model.token_losses(ids, mask).masked_fill(labels == -100, 0)
        torch.testing.assert_close(losses.sum(), expected)
