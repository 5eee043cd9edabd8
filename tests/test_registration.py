"""`import synthetic_attention` registers the models; the package works without the extra `train`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from synthetic_attention import SynthesizerConfig
from synthetic_attention import models as package

pytestmark = pytest.mark.slow  # almost every test starts a process
# The packages of the extras, without filelock, typer and yaml, which torch and transformers need themselves.
EXTRAS = {
    *("accelerate", "babel", "datasets", "matplotlib", "pycocoevalcap", "rich", "rouge_score", "sacrebleu"),
    *("scipy", "sentencex", "sklearn"),
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
    # transformers copies the code of checkpoints there.
    environment = {**os.environ, **({"HF_MODULES_CACHE": str(cwd / "modules"), "HF_HUB_OFFLINE": "1"} if cwd else {})}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)


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


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, str]:
    """The class of the model in each folder, and the Auto class that loads it."""
    found = {}
    for auto, name in SynthesizerConfig.auto_map.items():
        kind = getattr(package, name.partition(".")[2])
        sizes = {"vocab_size": 9, "d_model": 4, "num_heads": 2, "d_ff": 4, "num_layers": 1}
        config = SynthesizerConfig(**sizes, is_encoder_decoder=auto == "AutoModelForSeq2SeqLM")
        (config if kind is SynthesizerConfig else kind(config)).save_pretrained(tmp_path / auto)
        found[auto] = kind.__name__
    return found


def test_checkpoints_load_without_an_import_by_hand(saved: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import sys, transformers\n"
        f"for name in {[*saved]}:\n"
        "    model = getattr(transformers, name).from_pretrained(name, trust_remote_code=True)\n"
        "    print(type(model).__name__)\n"
        "model.save_pretrained('again')\n"
    )
    assert "modeling_synthesizer.py" in {path.name for path in (tmp_path / "AutoConfig").iterdir()}
    done = run("-c", code, cwd=tmp_path)
    assert done.stdout.split() == [*saved.values()], done.stderr
    files = [{x.name for x in (tmp_path / name).iterdir()} for name in ("again", "AutoModelForTokenClassification")]
    assert files[0] == files[1]
    # Where the package is missing, one line says what to install.
    done = run("-c", HIDE.replace(str(EXTRAS), "{'synthetic_attention'}") + code, cwd=tmp_path)
    assert done.stderr.splitlines()[-1].endswith("this model needs: pip install synthetic-attention")


@pytest.mark.parametrize("trust", [False, True])
def test_checkpoints_without_the_file_load_as_before(saved: dict[str, str], tmp_path: Path, trust: bool) -> None:
    for auto, name in saved.items():
        path = tmp_path / auto / "config.json"
        (path.parent / "modeling_synthesizer.py").unlink()
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**content, "auto_map": {auto: "evil.Evil"}}), encoding="utf-8")
        loaded = getattr(transformers, auto).from_pretrained(path.parent, trust_remote_code=trust)
        assert type(loaded).__name__ == name
        assert getattr(loaded, "config", loaded).auto_map == SynthesizerConfig.auto_map


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
    done = run("-c", HIDE + "from synthesizer_lab.cli import main; main(['train', 'translation', '--output', 'run'])")
    assert done.returncode == 1
    # torchao, which transformers imports, may print lines before it.
    line = done.stderr.splitlines()[-1]
    assert line.startswith("Error: ")
    assert "pip install 'synthetic-attention[train]'" in line
