"""A run with a damaged or foreign file: one line that names it, from every command that reads the file."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from cli.conftest import Call, Result, check_error

COMMANDS = {
    "generate": lambda run: ("generate", run, "one"),
    "evaluate": lambda run: ("evaluate", run),
    "resume": lambda run: ("train", "translation", "--resume", "--steps", "4", "--output", run),
}


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def command(call: Call, name: str, run: Path) -> Result:
    return call(*COMMANDS[name](run))


@pytest.mark.parametrize(
    ("name", "missing"),
    [("model.safetensors", "no model yet"), ("config.json", "config.json"), ("tokenizer.json", "is missing")],
)
def test_files_of_the_model(call: Call, run: Path, name: str, missing: str) -> None:
    for content in (b"damaged", b"{}"):
        (run / name).write_bytes(content)
        check_error(command(call, "generate", run), run)
    (run / name).unlink()
    check_error(command(call, "generate", run), run, missing)


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "quantization_config"])
def test_code_and_weights_from_elsewhere_are_refused(call: Call, run: Path, name: str) -> None:
    path = run / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, name: "evil/kernel"}), encoding="utf-8")
    check_error(command(call, "generate", run), run / "config.json", f"it has {name}")
    # Entries that transformers follows only with trust_remote_code.
    path.write_text(json.dumps({**content, "auto_map": {"AutoModelForSeq2SeqLM": "evil.Model"}}), encoding="utf-8")
    assert command(call, "generate", run)[0] == 0
    (run / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "evil/model"}), encoding="utf-8")
    check_error(command(call, "generate", run), run, "adapter_config.json")


class _Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def test_no_code_of_a_run_is_executed(call: Call, run: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    code = f"import os\nos.system('touch {mark}')\nclass Evil: ...\ndef generate(*a, **k): ...\n"
    (run / "custom_generate").mkdir()
    for name in ("modeling_synthesizer.py", "modeling_evil.py", "tokenization_evil.py", "custom_generate/generate.py"):
        (run / name).write_text(code, encoding="utf-8")
    for name, entry in (("config.json", "modeling_evil.Evil"), ("tokenizer_config.json", "tokenization_evil.Evil")):
        content = json.loads((run / name).read_text(encoding="utf-8"))
        content["auto_map"] = dict.fromkeys(("AutoModelForSeq2SeqLM", "AutoConfig", "AutoTokenizer"), entry)
        (run / name).write_text(json.dumps(content), encoding="utf-8")
    torch.save(_Payload(mark), run / "pytorch_model.bin")
    for name in COMMANDS:
        assert command(call, name, run)[0] == 0
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save(_Payload(mark), run / "checkpoints/checkpoint-4" / name)
    check_error(call("train", "translation", "--resume", "--steps", "6", "--output", run), "checkpoint-4")
    (run / "run.yaml").write_text(f'!!python/object/apply:os.system ["touch {mark}"]\n', encoding="utf-8")
    for name in COMMANDS:
        check_error(command(call, name, run), "run.yaml")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("training", "push_to_hub", True),
        ("training", "output_dir", "elsewhere"),
        ("model", "attn_implementation", "evil/kernel"),
    ],
)
def test_settings_that_no_option_sets_are_refused(
    call: Call, run: Path, tmp_path: Path, group: str, name: str, value: object
) -> None:
    info = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    info["settings"][group][name] = value
    (run / "run.yaml").write_text(yaml.safe_dump(info), encoding="utf-8")
    check_error(command(call, "resume", run), run, f"unknown {group} settings: {name}")
    new = ("--from", run, "--data", info["data"], "--source", "en", "--target", "de", "--output", tmp_path / "new")
    check_error(call("train", "translation", *new), run, f"unknown {group} settings: {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_run_yaml(call: Call, run: Path, name: str) -> None:
    info = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    for key in ("settings", "data", "options"):
        rest = {other: value for other, value in info.items() if other != key}
        (run / "run.yaml").write_text(yaml.safe_dump(rest), encoding="utf-8")
        check_error(command(call, name, run), "run.yaml", f"no {key}")
    (run / "run.yaml").write_text(yaml.safe_dump(info).replace("synthesizer: random+vanilla", "synthesizer: &s [*s]"))
    check_error(command(call, name, run), "run.yaml", "alias")
    (run / "run.yaml").write_text("[")
    check_error(command(call, name, run), "run.yaml")
