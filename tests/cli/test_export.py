"""synthesizer export, and the example that generates with its files."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from cli.conftest import Call, check_error, succeed, train_run
from synthetic_attention import convert

example = pytest.importorskip("onnx_generation", reason="the extra export is not installed")
TEXT = "one plus two"


def test_a_program(call: Call, trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    file.write_bytes(b"mine")
    command = ("export", trained, "--format", "torch", "--output", file)
    check_error(call(*command), file, "--overwrite")
    assert file.read_bytes() == b"mine"
    assert call(*command, "--overwrite")[:2] == (0, f"{file}\n")
    assert file.stat().st_size > 1000
    check_error(call("export", trained, "--format", "tflite", "--output", file), "tflite", code=2)
    check_error(call("export", tmp_path, "--output", file), tmp_path)
    check_error(call("export", trained, "--output", tmp_path, "--overwrite"), tmp_path, "is a folder")


def test_a_converted_model(call: Call, tmp_path: Path) -> None:
    sizes = {"vocab_size": 20, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1)).save_pretrained(tmp_path / "gpt2")
    convert(str(tmp_path / "gpt2"), "random:1/vanilla:1").save_pretrained(tmp_path / "ours")
    file = tmp_path / "new/model.onnx"
    assert float(succeed(call("export", tmp_path / "ours", "--output", file))[0].split()[3]) < 1e-4
    check_error(call("export", tmp_path / "gpt2", "--output", file, "--overwrite"), "GPT2LMHeadModel", "convert")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["translation", "language-modeling"])
def test_onnx_runtime_generates_what_the_model_does(
    call: Call, trained: Path, corpus: Path, tmp_path: Path, task: str
) -> None:
    run, file, auto = trained, tmp_path / "model.onnx", AutoModelForSeq2SeqLM
    if task == "language-modeling":
        run, auto = tmp_path / "run", AutoModelForCausalLM
        (tmp_path / "data").mkdir()
        for split in ("train", "valid"):
            shutil.copy(corpus / f"{split}.en", tmp_path / f"data/{split}.txt")
        train_run(task, tmp_path / "data", run)
    lines = succeed(call("export", run, "--with-cache", "--output", file))[0].splitlines()
    assert len(lines) == 1 + (task == "translation")
    assert all(Path(line.split(": ")[0]).is_file() and float(line.split()[3]) < 1e-4 for line in lines)
    model: Any = auto.from_pretrained(run)
    tokenizer = AutoTokenizer.from_pretrained(run)
    inputs = tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        (ids,) = model.generate(**inputs, max_length=model.config.max_position_embeddings)
    start = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    expected = tokenizer.decode(ids[start:], skip_special_tokens=True)
    *encoder, decoder = (Path(line.split(": ")[0]) for line in lines)
    assert example.OnnxGenerator(run, decoder, *encoder)(TEXT) == expected
