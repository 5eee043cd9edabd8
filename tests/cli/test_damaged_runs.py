"""A run of which some file is damaged or of another: one clear line, from every command that reads the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from synthetic_attention.data.tokenizer import train_tokenizer

RESUME = ("train", "translation", "--resume", "--steps", "4", "--output")
GENERATE = ("generate",)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _check(result: tuple[int, str, str], message: str) -> None:
    code, out, err = result
    # How many pairs were read, and that the run is resumed, may have been said before.
    last = err.splitlines()[-1]
    assert (code, out) == (1, ""), err
    assert "Traceback" not in err
    assert last.startswith("Error: "), err
    assert message in last


def _call(call: Callable[..., tuple[int, str, str]], command: tuple[str, ...], run: Path) -> tuple[int, str, str]:
    return call(*command, run, *(["one"] if command == GENERATE else []))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_files_of_the_model(call, run: Path, name: str) -> None:
    (run / name).write_bytes(b"damaged")
    _check(_call(call, GENERATE, run), "the run cannot be loaded")
    (run / name).write_bytes(b"{}")
    _check(_call(call, GENERATE, run), "the run cannot be loaded")
    (run / name).unlink()
    _check(_call(call, GENERATE, run), "no model there yet" if name.startswith("model") else "cannot be loaded")


def test_weights_that_are_missing_or_of_another_model(call, run: Path) -> None:
    weights = load_file(run / "model.safetensors")
    name = sorted(weights)[-1]
    kept = {key: value for key, value in weights.items() if key != name}
    save_file(kept, run / "model.safetensors", metadata={"format": "pt"})
    _check(_call(call, GENERATE, run), f"missing keys: {name}")
    save_file({**weights, "stranger": weights[name].clone()}, run / "model.safetensors", metadata={"format": "pt"})
    _check(_call(call, GENERATE, run), "unexpected keys: stranger")


def test_configurations_of_other_models(call, run: Path) -> None:
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    for change, message in (({"model_type": "bert"}, "model_type 'bert'"), ({"d_ff": "wide"}, "cannot be loaded")):
        (run / "config.json").write_text(json.dumps({**config, **change}), encoding="utf-8")
        _check(_call(call, GENERATE, run), message)


def test_a_tokenizer_of_another_run(call, run: Path, corpus: Path) -> None:
    lines = (corpus / "train.en").read_text(encoding="utf-8") + (corpus / "train.de").read_text(encoding="utf-8")
    tokenizer: PreTrainedTokenizerFast = train_tokenizer(lines.splitlines(), 300, 64)
    tokenizer.add_tokens(["another", "word"])
    tokenizer.save_pretrained(run)
    _check(_call(call, GENERATE, run), "pieces, the model ")
    _check(_call(call, RESUME, run), "cannot be loaded")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {}}, "no valid settings.synthesizer, settings.training"),
        ({"settings": None}, "no valid settings"),
        ({"data": 3}, "no valid data"),
        ({"options": None}, "no valid options"),
        ({"fingerprints": {}}, "no valid fingerprints.train, fingerprints.valid"),
    ],
)
@pytest.mark.parametrize("command", [GENERATE, RESUME, ("evaluate",)])
def test_run_yaml(call, run: Path, change: dict[str, object], message: str, command: tuple[str, ...]) -> None:
    info = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    (run / "run.yaml").write_text(yaml.safe_dump({**info, **change}), encoding="utf-8")
    _check(_call(call, command, run), message)
    (run / "run.yaml").write_text(yaml.safe_dump({k: v for k, v in info.items() if k not in change}), encoding="utf-8")
    _check(_call(call, command, run), "no valid")


def test_settings_that_are_unknown(call, run: Path) -> None:
    info = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    info["settings"]["training"]["speed"] = 2
    (run / "run.yaml").write_text(yaml.safe_dump(info), encoding="utf-8")
    _check(_call(call, RESUME, run), "run.yaml: got settings that cannot be read")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("progress.json", b"{", "the checkpoint cannot be loaded"),
        ("progress.json", b'{"best": 3}', "the checkpoint cannot be loaded"),
        ("progress.json", b'{"speed": 3}', "the checkpoint cannot be loaded"),
        ("progress.json", None, "progress.json missing"),
        ("trainer_state.json", b"{}", "the checkpoint cannot be loaded"),
        ("trainer_state.json", b'{"global_step": 1}', "trainer_state.json is of another step"),
        ("model.safetensors", b"damaged", "the checkpoint cannot be loaded"),
        ("optimizer.pt", b"damaged", "the checkpoint cannot be loaded"),
        ("optimizer.pt", None, "optimizer.pt missing"),
        ("scheduler.pt", b"", "the checkpoint cannot be loaded"),
        ("rng_state.pth", b"damaged", "the checkpoint cannot be loaded"),
        ("rng_state.pth", None, "rng_state.pth missing"),
    ],
)
def test_checkpoints(call, run: Path, name: str, content: bytes | None, message: str) -> None:
    path = run / "checkpoints/checkpoint-2" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    _check(_call(call, RESUME, run), message)


@pytest.mark.parametrize("line", ["{", "3", "{}", '{"step": "one"}'])
def test_the_log(call, run: Path, line: str) -> None:
    with (run / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    _check(_call(call, RESUME, run), "log.jsonl, line 3: no entry of a log; remove the line to resume")
    assert (run / "log.jsonl").read_text(encoding="utf-8").endswith(f"{line}\n")
    # What a kill has cut is no damage.
    (run / "log.jsonl").write_text('{"step": 2}\n{"st', encoding="utf-8")
    assert _call(call, RESUME, run)[0] == 0
