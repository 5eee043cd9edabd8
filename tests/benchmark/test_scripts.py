"""benchmarks/decoders.py: GPT-2 and Llama as the model of language modeling."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel, LlamaForCausalLM

from cli.conftest import SETS, Call, call, check_error
from scripts import load_script
from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM

__all__ = ["call"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("decoders")


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
    command[command.index("--output") + 1] = tmp_path / "packed"
    _, _, err = call(*command, "vanilla", "--set", "packed=true")
    assert "expected packed=false" in err


GPT2 = {"position_embedding_type": "learned"}
LLAMA = {"position_embedding_type": "rotary", "norm_type": "rms_norm", "feed_forward_proj": "gated-silu"}
LLAMA |= {"use_bias": False}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("name", "options"), [("Gpt2", GPT2), ("Llama", LLAMA)])
def test_the_loss_is_the_peers_and_smoothed_as_ours(
    script: ModuleType, name: str, options: dict[str, Any], smoothing: float
) -> None:
    sizes = {"vocab_size": 53, "d_model": 24, "num_heads": 2, "d_ff": 31, "num_layers": 2}
    config = SynthesizerConfig(
        **sizes, **options, max_position_embeddings=19, synthesizer="vanilla", dropout_rate=0.0, eos_token_id=None
    )
    peer = getattr(script, name)
    model = peer(config).eval()
    assert model.num_parameters() == SynthesizerForCausalLM(config).num_parameters()
    ids, mask = torch.randint(3, 53, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, 0] = -100
    theirs = {"Gpt2": GPT2LMHeadModel, "Llama": LlamaForCausalLM}[name](peer.peer_config(config))
    theirs.load_state_dict(model.state_dict())
    logits = theirs.eval()(ids, attention_mask=mask).logits[:, :-1]
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=smoothing, reduction="sum"
    )
    torch.testing.assert_close(model(ids, mask, labels, smoothing=smoothing).loss, expected)
    if not smoothing:
        losses = model.token_losses(ids, mask).masked_fill(labels == -100, 0)
        torch.testing.assert_close(losses.sum(), expected)
