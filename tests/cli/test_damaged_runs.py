"""A run with a damaged or foreign file: one line that names it, from every command that reads the file."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from cli.conftest import Call, Result, check_error
from synthesizer_lab.data.tokenizer import train_tokenizer

COMMANDS = {
    "generate": lambda run: ("generate", run, "one"),
    "evaluate": lambda run: ("evaluate", run),
    "resume": lambda run: ("train", "translation", "--resume", "--steps", "4", "--output", run),
}


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def edit(path: Path, **changes: object) -> None:
    """Change entries of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


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
    check_error(command(call, "generate", run), run / "config.json", f"it has {name}")
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


def test_settings_of_generation_have_no_effect(call: Call, run: Path) -> None:
    result = command(call, "generate", run)
    odd = {"use_cache": 0, "eos_token_id": "x", "return_dict_in_generate": True, "num_beams": 8, "max_new_tokens": 3}
    edit(run / "generation_config.json", **odd)
    assert command(call, "generate", run) == result


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(call: Call, run: Path, value: float) -> None:
    weights = load_file(run / "model.safetensors")
    name = sorted(weights)[-1]
    weights[name].view(-1)[-1] = value
    save_file(weights, run / "model.safetensors", metadata={"format": "pt"})
    for each in ("generate", "evaluate"):
        check_error(command(call, each, run), run, "model.safetensors has weights that are not finite", name)


def test_tokens_outside_of_the_vocabulary(call: Call, run: Path) -> None:
    path = run / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    model = json.loads(text)["model"]
    model["vocab"][max(model["vocab"], key=model["vocab"].get)] = 9999
    processor = json.loads(text)["post_processor"]
    processor["special_tokens"]["</s>"]["ids"] = [9999]
    for change in ({"model": model}, {"post_processor": processor}):
        path.write_text(text, encoding="utf-8")
        edit(path, **change)
        for name in COMMANDS:
            check_error(command(call, name, run), run, "tokenizer.json has token 9999")


def test_a_tokenizer_that_panics(call: Call, run: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "([a-z ]+)+[A-Z]$"}, "behavior": "Isolated", "invert": False}
    own = json.loads((run / "tokenizer.json").read_text(encoding="utf-8"))["pre_tokenizer"]
    edit(run / "tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": [split, own]})
    code, _, err = call("generate", run, "the tea is on the table " * 9)
    assert (code, err.splitlines()[-1].split(":")[1].strip()) == (1, str(run))
    assert "tokenizer.json cannot be loaded" in err.splitlines()[-1]


@pytest.mark.parametrize("content", ["[" * 200_000, f'{{"finished": {"1" * 5000}}}'], ids=["deep", "digits"])
def test_json_that_python_does_not_read(call: Call, run: Path, content: str) -> None:
    (run / "evaluation").mkdir(exist_ok=True)
    for name in ("metrics.json", "evaluation/x.json"):
        (run / name).write_text(content, encoding="utf-8")
        assert command(call, "evaluate", run)[0] == 0
    check_error(command(call, "resume", run), run / "evaluation/x.json")
    for name, fact in (("config.json", "config.json"), ("tokenizer_config.json", "the tokenizer")):
        (run / name).write_text(content, encoding="utf-8")
        check_error(command(call, "generate", run), run, fact)
    (path,) = (run / "checkpoints").glob("*/progress.json")
    path.write_text(content, encoding="utf-8")
    check_error(command(call, "resume", run), path.parent)


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
    (run / "run.yaml").write_text(yaml.safe_dump(info).replace("synthesizer: random+vanilla", "synthesizer: &s [*s]"))
    check_error(command(call, name, run), "run.yaml", "alias")
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
        ("progress.json", b'{"best": {"bleu": 1.0}}'),
        ("progress.json", b'{"tokens": "x"}'),
        ("progress.json", b'{"log": [{"step": 2, "loss": NaN}]}'),
        ("progress.json", b'{"log": [1]}'),
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


def test_states_of_another_trainer(call: Call, run: Path) -> None:
    checkpoint = run / "checkpoints/checkpoint-2"
    edit(checkpoint / "trainer_state.json", total_flos="x", stateful_callbacks={"Other": {"args": {}}})
    assert command(call, "resume", run)[0] == 0


def test_errors_of_the_first_step(call: Call, run: Path) -> None:
    checkpoint = run / "checkpoints/checkpoint-2"
    state = torch.load(checkpoint / "scheduler.pt")
    torch.save({**state, "base_lrs": [0.1] * 9}, checkpoint / "scheduler.pt")
    check_error(command(call, "resume", run), checkpoint)
    torch.save(state, checkpoint / "scheduler.pt")
    edit(checkpoint / "trainer_state.json", logging_steps=0)
    check_error(command(call, "resume", run), checkpoint)
