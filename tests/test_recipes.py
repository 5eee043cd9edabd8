"""The recipes of docs/recipes.md, each where its library is installed."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documents import ROOT, blocks
from synthesizer_lab.data.tokenizer import train_tokenizer
from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM, SynthesizerModel

LINES = [f"The concert in room {number} begins at 8:30 PM." for number in range(24)]
RECIPES = blocks(ROOT / "docs/recipes.md")
LIBRARIES = ("trl", "lightning", "sentence_transformers", "lm_eval")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With all that the page names."""
    tokenizer = train_tokenizer(LINES, 300, 64)
    fields = {"vocab_size": len(tokenizer), "d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 1}
    config = SynthesizerConfig(**fields, synthesizer="random", max_position_embeddings=64, is_encoder_decoder=False)
    for name, model in (("my-model", SynthesizerForCausalLM(config)), ("my-encoder", SynthesizerModel(config))):
        for each in (model, tokenizer):
            each.save_pretrained(tmp_path / name)
    (tmp_path / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / "tasks").mkdir()
    (task,) = (content for language, content in RECIPES if language == "yaml")
    (tmp_path / "tasks/lines.yaml").write_text(task, encoding="utf-8")
    return tmp_path


def _run(folder: Path, *arguments: str) -> str:
    places = {"HF_MODULES_CACHE": "modules", "HF_DATASETS_CACHE": "datasets", "HF_HUB_OFFLINE": "1"}
    command, environment = [sys.executable, *arguments], {**os.environ, **places}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_recipes_run(library: str, folder: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    uses = re.compile(rf"^(import|from) {library}\b|^{library} ", re.MULTILINE)
    ((language, code),) = ((language, code) for language, code in RECIPES if uses.search(code))
    assert len(code.replace("\n\n", "\n").splitlines()) <= 20
    if language == "python":
        _run(folder, "-c", code)
    else:
        assert "word_perplexity" in _run(folder, "-m", *code.split(), "--device", "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("task", ['"text-generation", ', ""])
def test_a_pipeline_loads_without_an_import_by_hand(task: str, folder: Path) -> None:
    make = f'transformers.pipeline({task}model="my-model", trust_remote_code=True)'
    assert "SynthesizerForCausalLM" in _run(folder, "-c", f"import transformers; print(type({make}.model))")
