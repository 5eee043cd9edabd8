"""A run with a damaged or foreign file: one line that names it, from every command that reads the file."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

from cli.conftest import Call, Result, check_error
from synthetic_attention.data.tokenizer import train_tokenizer

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
    [
        ("model.safetensors", "no model yet"),
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer.json is missing"),
    ],
)
def test_files_of_the_model(call: Call, run: Path, name: str, missing: str) -> None:
    for content in (b"damaged", b"{}"):
        (run / name).write_bytes(content)
        check_error(command(call, "generate", run), run)
    (run / name).unlink()
    check_error(command(call, "generate", run), run, missing)


def test_wrong_weights(call: Call, run: Path) -> None:
    weights = load_file(run / "model.safetensors")
    name = sorted(weights)[-1]
    kept = {key: value for key, value in weights.items() if key != name}
    save_file(kept, run / "model.safetensors", metadata={"format": "pt"})
    check_error(command(call, "generate", run), "missing", name)
    save_file({**weights, "stranger": weights[name].clone()}, run / "model.safetensors", metadata={"format": "pt"})
    check_error(command(call, "generate", run), "unexpected", "stranger")


@pytest.mark.parametrize(("change", "fact"), [({"model_type": "bert"}, "'bert'"), ({"d_ff": "wide"}, "d_ff")])
def test_wrong_configurations(call: Call, run: Path, change: dict[str, str], fact: str) -> None:
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    (run / "config.json").write_text(json.dumps({**config, **change}), encoding="utf-8")
    check_error(command(call, "generate", run), fact)


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "quantization_config"])
def test_code_and_weights_from_elsewhere_are_refused(call: Call, run: Path, name: str) -> None:
    path = run / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, name: "evil/kernel"}), encoding="utf-8")
    check_error(command(call, "generate", run), run, f"config.json has {name}")
    # Entries that transformers follows only with trust_remote_code.
    path.write_text(json.dumps({**content, "auto_map": {"AutoModelForSeq2SeqLM": "evil.Model"}}), encoding="utf-8")
    assert command(call, "generate", run)[0] == 0
    (run / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "evil/model"}), encoding="utf-8")
    check_error(command(call, "generate", run), run, "adapter_config.json")


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


@pytest.mark.parametrize(
    ("name", "value"), [("use_cache", 0), ("eos_token_id", "x"), ("return_dict_in_generate", True)]
)
def test_settings_of_generation(call: Call, run: Path, name: str, value: object) -> None:
    path = run / "generation_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, name: value}), encoding="utf-8")
    check_error(command(call, "generate", run), run, f"generation_config.json has {name}={value!r}")
    path.write_text(json.dumps({**content, "max_new_tokens": 3}), encoding="utf-8")
    assert command(call, "generate", run)[0] == 0


def test_a_tokenizer_of_another_run(call: Call, run: Path, corpus: Path) -> None:
    lines = (corpus / "train.en").read_text(encoding="utf-8") + (corpus / "train.de").read_text(encoding="utf-8")
    tokenizer = train_tokenizer(lines.splitlines(), 300, 64)
    tokenizer.add_tokens(["another", "word"])
    tokenizer.save_pretrained(run)
    check_error(command(call, "generate", run), len(tokenizer))
    check_error(command(call, "resume", run), run)


@pytest.mark.parametrize("name", COMMANDS)
def test_run_yaml(call: Call, run: Path, name: str) -> None:
    info = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    settings = {**info["settings"], "training": None}
    for key, value in (("settings", {}), ("settings", settings), ("data", 3), ("options", None), ("from", "x")):
        (run / "run.yaml").write_text(yaml.safe_dump({**info, key: value}), encoding="utf-8")
        check_error(command(call, name, run), "run.yaml", key)
    for key in ("settings", "data", "options"):
        without = {other: value for other, value in info.items() if other != key}
        (run / "run.yaml").write_text(yaml.safe_dump(without), encoding="utf-8")
        check_error(command(call, name, run), "run.yaml", key)
    for content, fact in (("", "no valid task, data"), ("- 1", "no valid task"), ("[", "run.yaml")):
        (run / "run.yaml").write_text(content)
        check_error(command(call, name, run), "run.yaml", fact)
    if name == "resume":
        info["settings"]["training"]["speed"] = 2
        (run / "run.yaml").write_text(yaml.safe_dump(info), encoding="utf-8")
        check_error(command(call, name, run), run, "speed")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("progress.json", b'{"speed": 3}'),
        ("progress.json", b'{"seconds": "x"}'),
        ("progress.json", b'{"last": null}'),
        ("progress.json", b'{"best": {"step": 2, "bleu": "x"}}'),
        ("progress.json", b'{"log": [{"step": 2, "loss": NaN}]}'),
        ("trainer_state.json", b'{"global_step": 1}'),
        ("model.safetensors", b"damaged"),
        ("optimizer.pt", None),
        ("scheduler.pt", b""),
        ("rng_state.pth", b"damaged"),
        ("scaler.pt", b""),
    ],
)
def test_checkpoints(call: Call, run: Path, name: str, content: bytes | None) -> None:
    path = run / "checkpoints/checkpoint-2" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    check_error(command(call, "resume", run), "checkpoint-2")
