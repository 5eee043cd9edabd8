"""`import synthetic_attention` registers the models; the package works without the extra `train`."""

import subprocess
import sys
from pathlib import Path

import pytest

# The packages of the extras, without filelock and yaml, which torch and transformers need themselves.
EXTRAS = {
    *("accelerate", "babel", "datasets", "matplotlib", "pycocoevalcap", "rich", "rouge_score", "sacrebleu"),
    *("scipy", "sentencex", "sklearn", "typer"),
}
# Python code that hides them from imports.
HIDE = f"""
import sys
from importlib.machinery import PathFinder
class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {EXTRAS} else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=cwd)


@pytest.mark.parametrize("first", ["AutoConfig", "PreTrainedModel"])
def test_models_register_on_import(first: str) -> None:
    code = (
        "import synthetic_attention\n"
        f"from transformers import {first}\n"
        "from transformers import AutoConfig, AutoModelForSeq2SeqLM\n"
        "config = AutoConfig.for_model('synthesizer', vocab_size=9, d_model=4, num_heads=2, d_ff=4, num_layers=1)\n"
        "print(type(AutoModelForSeq2SeqLM.from_config(config)).__name__)"
    )
    done = run("-c", code)
    assert done.stdout.strip() == "SynthesizerForConditionalGeneration", done.stderr


def test_models_register_in_a_module_run_by_name(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("import synthetic_attention\n")
    (tmp_path / "own" / "script.py").write_text(
        "from transformers import AutoConfig\nprint(AutoConfig.for_model('synthesizer').model_type)\n"
    )
    done = run("-m", "own.script", cwd=tmp_path)
    assert done.stdout.strip() == "synthesizer", done.stderr


def test_models_work_without_the_extra() -> None:
    code = HIDE + (
        "import torch, synthetic_attention as package\n"
        "layer = package.SynthesizerAttention(d_model=8, num_heads=2, synthesizer='random+vanilla', max_length=5)\n"
        "config = package.SynthesizerConfig(vocab_size=9, d_model=4, num_heads=2, d_ff=4, num_layers=1)\n"
        "model = package.SynthesizerForConditionalGeneration(config)\n"
        "ids = torch.tensor([[4, 5, 6]])\n"
        "model(input_ids=ids, labels=ids).loss.backward()\n"
        "print(*layer(torch.zeros(5, 8)).shape, len(model.generate(ids, max_new_tokens=3, num_beams=2)))"
    )
    done = run("-c", code)
    assert done.stdout.strip() == "5 8 1", done.stderr


def test_command_names_the_extra_it_needs() -> None:
    code = HIDE + "from synthesizer_lab.cli import main; main(['--help'])"
    done = run("-c", code)
    assert done.returncode == 1
    # torchao, which transformers imports, may print lines before it.
    line = done.stderr.splitlines()[-1]
    assert "typer" in line
    assert "pip install 'synthetic-attention[train]'" in line
