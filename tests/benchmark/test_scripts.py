"""The scripts of benchmarks/: what the demo prints, and GPT-2 as the model of language modeling."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rich.console import Console
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
    command[command.index("--output") + 1] = tmp_path / "packed"
    _, _, err = call(*command, "vanilla", "--set", "packed=true")
    assert "expected packed=false" in err


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


def test_samples_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo: Any = load_script("demo")
    lines = {"vanilla": "eins\nzwei\ndrei\nvier\n", "random": "eins\nzwei\ndrei\nfalsch\n"}
    runs = []
    for name, text in lines.items():
        tests = {split: {"predictions": "test.de", "scores": {"exact_match": 66.7}} for split in demo.SPLITS}
        runs.append({"row": name, "folder": name, "tests": tests})
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.de").write_text(text, encoding="utf-8")
    for split, first in zip(demo.SPLITS, ("eins", "1"), strict=True):
        for side, text in (("en", "one\ntwo\nthree\nfour\n"), ("de", f"{first}\nzwei\ndrei\nvier\n")):
            (tmp_path / f"{split}.{side}").write_text(text, encoding="utf-8")
    monkeypatch.setattr(demo, "console", Console(width=80, highlight=False))
    demo.print_results({"runs": runs}, tmp_path, tmp_path)
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, printed)) <= 80
    assert [line.split() for line in printed if "67 %" in line] == [[name, *["67", "%"] * 2] for name in lines]
    two = ["", "two", "✓ zwei  all models", ""]
    start = printed.index("one")
    mistake = ["four", "✓ vier  vanilla", "✗ falsch  random", ""]
    assert printed[start : start + 10] == ["one", "✓ eins  all models", *two, *mistake]
    assert printed[start + 12 :] == ["one", "✓ 1  no model", "✗ eins  all models", *two]
